"""docs/collector.md: its commands, as a reader would type them."""

from __future__ import annotations

import os
import re
import subprocess

from tests.collector.support import ROOT, run_python
from tests.collector.test_delivery import TRAJECTORIES
from tests.ports import free_port
from tests.spool_reader import read_segment
from tests.waiting import wait_for

PAGE = (ROOT / "docs" / "collector.md").read_text()


def test_the_first_five_minutes_end_with_traces_in_a_stack(collector, tmp_path):
    """The page's commands run in a shell at the top of the repository.

    They use other ports.
    """
    backend = collector("local.yaml", "to-file.yaml")  # anything that takes OTLP
    install, start, run = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[:3]
    wait = 'until curl -sf "http://$COLLECTOR_HEALTH" >/dev/null; do sleep 0.2; done\n'
    http = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "BACKEND_ENDPOINT": backend.endpoint,
        "COLLECTOR_GRPC": f"127.0.0.1:{free_port()}",
        "COLLECTOR_HTTP": http,
        "COLLECTOR_HEALTH": f"127.0.0.1:{free_port()}",
        "COLLECTOR_METRICS_PORT": str(free_port()),
        "COLLECTOR_STORAGE": str(tmp_path / "storage"),
        "SPANS_FILE": str(tmp_path / "spans.jsonl"),
        "OTEL_ROLLOUT_DELTA_URI": str(tmp_path / "rollouts"),  # else it is made in the checkout
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{http}",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    run = run.replace("wc -l spans.jsonl", 'wc -l "$SPANS_FILE"')
    run = run.replace("--backend otlp", "--backend otlp --steps 1 --samples 2")
    script = f"set -e; trap 'kill %1; wait' EXIT\n{install}{start}{wait}{run}"
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
    (delivered,) = re.findall(r"(\d+) spans recorded .* lost: 0", ran.stdout)
    assert len(read_segment(tmp_path / "spans.jsonl")) == int(delivered)
    wait_for(lambda: len(backend.ids()) == int(delivered), what="every span in the stack")


def test_a_destination_may_be_for_one_project(collector, environment, tmp_path):
    """The page's routing sends all spans of one project to one destination.

    The other destination gets all other spans.
    """
    routing = tmp_path / "to-math.yaml"
    (block,) = [one for one in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "filter/math" in one]
    routing.write_text(block)
    gateway = collector("gateway.yaml", "to-file.yaml", routing)
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = gateway.endpoint
    for project in ("math-agents", "other"):
        run_python(TRAJECTORIES, environment | {"OTEL_ROLLOUT_PROJECT": project})
    wait_for(lambda: len(gateway.spans()) == 400, what="every span")
    routed = {
        s.span.span_id for s in gateway.spans() if s.attributes["rollout.project_name"] == "math-agents"
    }
    assert len(routed) == 200
    wait_for(
        lambda: {s.span.span_id for s in gateway.spans("math.jsonl")} == routed, what="those of the project"
    )
    assert len(gateway.spans("math.jsonl")) == 200
