"""Fixtures: every backend under test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conformance.backend import Adapter
from tests.conformance.delta_adapter import DeltaAdapter
from tests.conformance.mlflow_adapter import MlflowAdapter
from tests.conformance.otlp_adapter import receiver
from tests.conformance.weave_adapter import WeaveAdapter
from tests.local_weave import LocalWeave


@pytest.fixture(scope="module")
def adapters(
    local_weave: LocalWeave, tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[dict[str, Adapter]]:
    """Every backend under test, by its exporter's name."""
    with receiver() as otlp:
        mlflow = MlflowAdapter(new_store())
        delta = DeltaAdapter(tmp_path_factory.mktemp("delta"))
        yield {adapter.exporter: adapter for adapter in (mlflow, WeaveAdapter(local_weave), delta, *otlp)}
