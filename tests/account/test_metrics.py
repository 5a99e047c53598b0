"""Test the counts of the delivery report as OpenTelemetry metrics."""

from __future__ import annotations

import json
import subprocess
import sys


def test_meter_provider_gets_the_counts_of_the_report(test_exporters: None, tmp_path, monkeypatch) -> None:
    """A provider that is set late gets the counts, also those of a second run."""
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "delivered"))
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.programs.meter_provider"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    first, second = map(json.loads, ran.stdout.splitlines())
    assert first == {
        "otel_rollout.started": 4,
        "otel_rollout.recorded": 4,
        "otel_rollout.sampled_out/switched_off": 1,
        "otel_rollout.delivered/test-file": 4,
        "otel_rollout.rejected/test-file": 0,
        "otel_rollout.retried/test-file": 0,
    }
    assert (second["otel_rollout.started"], second["otel_rollout.recorded"]) == (1, 1)
