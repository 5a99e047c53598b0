"""Install the exporters of ``tests.doctor.exporters``."""

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
    """Write the metadata of a distribution with these exporters to ``site``."""
    info = site / "otel_rollout_doctor_tests-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: otel-rollout-doctor-tests\nVersion: 1\n")
    (info / "entry_points.txt").write_text(EXPORTERS)


@pytest.fixture
def checked_exporters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the exporters for this process."""
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


@pytest.fixture(autouse=True)
def only_variables_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the tracing variables of the suite: the doctor lists every one."""
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    monkeypatch.delenv("OTEL_ROLLOUT_KEEP")
