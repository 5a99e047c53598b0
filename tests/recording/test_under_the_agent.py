"""Under `opentelemetry-instrument`, nothing arrives twice.

The agent exports from inside the application.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest


@pytest.fixture
def agent(test_exporters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the agent's command with its entry point, and the exporter's file."""
    if importlib.util.find_spec("opentelemetry.distro") is None:
        info = tmp_path / "site" / "otel_rollout_tests-1.dist-info" / "entry_points.txt"
        with info.open("a") as file:
            file.write("\n[opentelemetry_configurator]\nconfigurator = tests.recording.agent:Configurator\n")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "delivered"))
    return tmp_path / "delivered"


def run(**variables: str) -> str:
    """Run the application under the agent; return its output."""
    command = shutil.which("opentelemetry-instrument", path=Path(sys.executable).parent)
    assert command is not None
    ran = subprocess.run(
        [command, sys.executable, "-m", "tests.recording.programs.traced_application"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "opentelemetry.sdk.trace" in ran.stdout, "the agent has set up the SDK"
    return ran.stderr


def arrived(path: Path) -> list[tuple[str, int, object]]:
    """Return each span's name, the number of its arrivals, and its step."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    counts = Counter(span_id for span_id, _, _ in lines)
    return sorted(
        {(name, counts[span_id], attrs.get("rollout.step")) for span_id, name, attrs in lines}, key=str
    )


def test_agent_and_forwarder_with_one_target_deliver_each_span_once(agent: Path) -> None:
    """Agent and forwarder read one variable.

    Each delivers its own spans, and all have the identity.
    """
    said = run(OTEL_TRACES_EXPORTER="test-file")
    assert arrived(agent) == [
        ("app inside", 1, 3),
        ("app outside", 1, None),
        ("op", 1, 3),
        ("rollout_trace", 1, 3),
    ]
    assert "opentelemetry-instrument exports the application's own spans to test-file" in said


def test_application_spans_reach_our_target_once(agent: Path) -> None:
    """Where only we deliver, the application's spans in a trajectory arrive too."""
    configuration = json.dumps({"exporters": {"test-file": {}}, "run_id": "run"})
    run(OTEL_TRACES_EXPORTER="console", OTEL_ROLLOUT_CONFIG=configuration, OTEL_ROLLOUT_SHUTDOWN_TIMEOUT="30")
    (node_dir,) = [path.parent for path in (agent.parent / "spool").rglob("run.json")]
    deliver = [
        Path(sys.executable).parent / "otel-rollout",
        "forward",
        "--spool",
        node_dir,
        "--to",
        "test-file",
    ]
    subprocess.run(deliver, check=False, capture_output=True, timeout=60)
    assert arrived(agent) == [("app inside", 1, 3), ("op", 1, 3), ("rollout_trace", 1, 3)]


def test_agent_with_a_configuration_file_leaves_our_target_to_us(agent: Path) -> None:
    """The SDK has its exporters from the file, so the variable names ours alone."""
    pytest.importorskip("opentelemetry.configuration", reason="this SDK reads no configuration file")
    file = agent.parent / "otel.yaml"
    file.write_text(
        "file_format: '1.0'\ntracer_provider: {processors: [{simple: {exporter: {console: {}}}}]}\n"
    )
    run(OTEL_TRACES_EXPORTER="test-file", OTEL_CONFIG_FILE=str(file))
    assert arrived(agent) == [("app inside", 1, 3), ("op", 1, 3), ("rollout_trace", 1, 3)]
