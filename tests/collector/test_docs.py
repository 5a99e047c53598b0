"""docs/collector.md: its commands, as a reader would type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.collector.support import ROOT
from tests.otlp import read_segment
from tests.ports import free_port


def test_the_first_five_minutes_end_with_spans_in_a_file(binary, tmp_path):
    """Both blocks of commands, run in a shell at the top of the repository, on other ports."""
    page = (ROOT / "docs" / "collector.md").read_text()
    start, run = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)[:2]
    wait = 'until curl -sf "http://$COLLECTOR_HEALTH" >/dev/null; do sleep 0.2; done\n'
    http = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLLECTOR_GRPC": f"127.0.0.1:{free_port()}",
        "COLLECTOR_HTTP": http,
        "COLLECTOR_HEALTH": f"127.0.0.1:{free_port()}",
        "COLLECTOR_METRICS_PORT": str(free_port()),
        "COLLECTOR_STORAGE": str(tmp_path / "storage"),
        "SPANS_FILE": str(tmp_path / "spans.jsonl"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{http}",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    run = run.replace("wc -l spans.jsonl", 'wc -l "$SPANS_FILE"')
    run = run.replace("--backend otlp", "--backend otlp --steps 1 --samples 2")
    script = f"set -e; trap 'kill %1; wait' EXIT\n{start}{wait}{run}"
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
    (delivered,) = re.findall(r"(\d+) spans recorded .* lost: 0", ran.stdout)
    assert len(read_segment(tmp_path / "spans.jsonl")) == int(delivered)
