"""A stack of somebody else's: Arize Phoenix, behind the Collector."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collector.support import ROOT, free_port, get
from tests.otlp import read_directory
from tests.waiting import wait_for

PHOENIX = ROOT / ".venv-phoenix" / "bin" / "phoenix"


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[str]:
    """A Phoenix server with a database of its own. `make collector` installs it; its absence fails."""
    assert PHOENIX.exists(), "make .venv-phoenix/.ready installs Phoenix"
    uri = f"http://127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": uri.rpartition(":")[2],
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(tmp_path / "phoenix"),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    log = tmp_path / "phoenix.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [PHOENIX, "serve"], env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:

        def healthy() -> str | None:
            assert server.poll() is None, log.read_text()[-3000:]
            return get(f"{uri}/healthz")

        wait_for(lambda: healthy() is not None, 120, "Phoenix")
        yield uri
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def spans_in(uri: str) -> list[dict[str, Any]]:
    """Every span of the default project."""
    found, cursor = [], ""
    while True:
        page = json.loads(get(f"{uri}/v1/projects/default/spans?limit=500{cursor}") or '{"data": []}')
        found += page["data"]
        if not page.get("next_cursor"):
            return found
        cursor = f"&cursor={page['next_cursor']}"


def test_phoenix_shows_the_demos_conversations(
    collector: Any, environment: dict[str, str], phoenix: str, tmp_path: Path
) -> None:
    """Every span of the demo is there with its kind, input and output; failures are seen as such."""
    running = collector("gateway.yaml", "to-otlp.yaml", BACKEND_ENDPOINT=phoenix)
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = running.endpoint
    demo = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "demo", "--backend", "otlp"]
    ran = subprocess.run(
        [*demo, "--steps", "1", "--samples", "2", "--n", "2"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    recorded = {span.span.span_id.hex(): span for span in read_directory(tmp_path / "spool")}
    wait_for(lambda: len(spans_in(phoenix)) >= len(recorded), 60, "every span in Phoenix")
    shown = {span["context"]["span_id"]: span for span in spans_in(phoenix)}
    assert set(shown) == set(recorded)
    for span_id, span in recorded.items():
        there = shown[span_id]
        assert there["name"] == span.name
        assert there["span_kind"] == span.attributes.get("openinference.span.kind", "UNKNOWN")
        assert (there["status_code"] == "ERROR") == (span.span.status.code == 2)
        for which in ("input.value", "output.value"):
            assert there["attributes"].get(which) == span.attributes.get(which)
    kinds = Counter(span["span_kind"] for span in shown.values())
    assert min(kinds["AGENT"], kinds["LLM"], kinds["TOOL"], kinds["EVALUATOR"]) > 0
