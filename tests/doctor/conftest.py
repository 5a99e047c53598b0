"""Exporters with a ``check()``, installed."""

from __future__ import annotations

from pathlib import Path

import pytest

EXPORTERS = """\
[opentelemetry_traces_exporter]
test-checked = tests.doctor.exporters:CheckedExporter
test-demanding = tests.doctor.exporters:DemandingExporter
test-plain = tests.exporters:FileExporter
test-absent = tests.doctor.no_such_module:Exporter
"""


def install(site: Path) -> None:
    """Make a directory that, on the path, makes them installed."""
    info = site / "otel_rollout_doctor_tests-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: otel-rollout-doctor-tests\nVersion: 1\n")
    (info / "entry_points.txt").write_text(EXPORTERS)


@pytest.fixture
def checked_exporters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have them installed in this process."""
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


@pytest.fixture(autouse=True)
def no_variables_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every variable that is seen counts."""
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    monkeypatch.delenv("OTEL_ROLLOUT_KEEP")
