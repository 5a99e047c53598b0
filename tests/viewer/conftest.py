"""Record a rollout in a process, and deliver it to a real MLflow server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rollout.cli import app
from otel_rollout.look.sources.private_table import fill
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout.table.location import location_of
from otel_rollout.table.store import Store
from tests.side_by_side import shared


@dataclass(frozen=True)
class Rollout:
    """The rollout of ``tests.viewer.job``.

    ``ids`` maps paths of its trajectories to their ids.
    """

    spool: Path
    tracking_uri: str
    ids: dict[str, str]

    def location(self, source: str) -> str:
        if source == "table":
            return str(self.spool.with_name("table"))
        return str(self.spool) if source == "spool" else f"mlflow:{self.tracking_uri}"


@pytest.fixture(scope="session")
def rollout(server_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollout]:
    with shared(tmp_path_factory, "look", lambda place: recorded_rollout(place, server_uri)) as place:
        ids = json.loads((Path(place) / "ids").read_text())
        yield Rollout(Path(place) / "spool", server_uri, ids)


@contextmanager
def recorded_rollout(place: Path, server_uri: str) -> Iterator[str]:
    """Record once for all of pytest's workers: they have one server."""
    spool = place / "spool"
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith(("OTEL_", "MLFLOW_"))},
        "OTEL_TRACES_EXPORTER": "mlflow",
        "MLFLOW_TRACKING_URI": server_uri,
        "OTEL_ROLLOUT_PROJECT": "look",
        "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
        "OTEL_ROLLOUT_KEEP": "true",
    }
    job = [sys.executable, "-m", "tests.viewer.job"]
    ran = subprocess.run(job, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    fill(Store(location_of(str(place / "table"))), SpoolSource(spool).every_span())
    (place / "ids").write_text(ran.stdout)
    yield str(place)


@pytest.fixture(autouse=True)
def experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the rollout's experiment: the server has experiments of other tests too."""
    monkeypatch.setenv("OTEL_ROLLOUT_PROJECT", "look")


def run(*arguments: object, code: int = 0, columns: int = 100) -> str:
    """Run the command and return its output; fail unless it exits with ``code``."""
    ran = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})
    assert ran.exit_code == code, ran.output
    return ran.output
