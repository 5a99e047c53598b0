"""Run programs with vLLM in processes of their own, and read what they recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from otel_rollout.base.environment import PREFIXES
from tests.exporters import install
from tests.spool_reader import Recorded, read_trajectories

ROOT = Path(__file__).parents[2]
ENGINE = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # saves 20 s at the first log probabilities
}
"""Variables of a program that runs vLLM on the CPU."""


def run(program: str, *arguments: str, place: Path, traced: bool = True, **variables: str) -> str:
    """Run a program below ``tests.vllm.programs``, and return its output.

    Args:
        program: name of the module.
        arguments: its arguments.
        place: gets the spool, the delivered spans, and the output.
        traced: whether the environment configures tracing.
        variables: further variables.
    """
    place.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    site = install(place / "site")
    environment = {
        **kept,
        **ENGINE,
        # The autoload of this checkout, not that of the environment.
        "PYTHONPATH": os.pathsep.join([str(ROOT / "autoload"), str(ROOT), str(ROOT / "examples"), site]),
        "OTEL_ROLLOUT_SPOOL_DIR": str(place / "spool"),
        "OTEL_ROLLOUT_KEEP": "true",
        "OTEL_ROLLOUT_PROJECT": "vllm",
        **({"OTEL_TRACES_EXPORTER": "test-file"} if traced else {}),
        "OTEL_TEST_FILE": str(place / "delivered.jsonl"),
        **variables,
    }
    output = place / "output.txt"
    with output.open("w") as stream:
        ran = subprocess.run(
            [sys.executable, "-m", f"tests.vllm.programs.{program}", *arguments],
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            timeout=600,
            check=False,
        )
    assert ran.returncode == 0, output.read_text()[-6000:]
    return output.read_text()


def trees(place: Path) -> dict[str, list[Recorded]]:
    """Return the spans of each trajectory, by the name of its root, sorted by start."""
    traces: dict[bytes, list[Recorded]] = defaultdict(list)
    for span in read_trajectories(place / "spool"):
        traces[span.span.trace_id].append(span)
    return {
        next(span.name for span in spans if not span.span.parent_span_id): sorted(
            spans, key=lambda span: span.span.start_time_unix_nano
        )
        for spans in traces.values()
    }


def named(spans: Iterable[Recorded], name: str) -> list[Recorded]:
    """Return the spans with a name."""
    return [span for span in spans if span.name == name]


def below(spans: Iterable[Recorded], parent: Recorded) -> list[Recorded]:
    """Return the spans directly below another one."""
    return [span for span in spans if span.span.parent_span_id == parent.span.span_id]
