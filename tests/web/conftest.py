"""Servers that several tests ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.table.tables import written
from tests.web.rows import hostile_rows, run_rows
from tests.web.served import Served


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a table of two runs, one with hostile names."""
    place = tmp_path_factory.mktemp("view")
    written(place / "table", run_rows(), hostile_rows())
    with Served(place / "table", place) as server:
        yield server


@pytest.fixture(scope="package")
def demo(demo_table: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve the table of the demo."""
    with Served(demo_table, tmp_path_factory.mktemp("view")) as server:
        yield server
