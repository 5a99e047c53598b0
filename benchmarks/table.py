"""Measure the rollout table.

    python -m benchmarks.table [--quick] [--only write]

`write`: trajectories of 20 spans are recorded once. Then a new forwarder writes a copy of that spool to a
table, in several rounds. The CPU time of a forwarder that delivers one trajectory is subtracted. Its peak
memory is compared with that of a forwarder that sends the spans by OTLP to a server that stores nothing; its
table's size with the recorded lines. Prints JSON, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.three_targets import AcceptingServers

ROOT = Path(__file__).parent.parent
SPANS_PER_TRAJECTORY = 20

_RECORD = """
import random, sys, otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score

vowels, ends = ("a", "e", "io", "ou"), ("l", "nt", "r", "s", "")
words = [first + vowel + end for first in "bdgklmnprst" for vowel in vowels for end in ends]
chosen = random.Random(7)

def text(count):
    return " ".join(chosen.choices(words, k=count)) + "."

@rollout_trace_op(kind="LLM")
def generate(messages):
    return {"response_text": text(80), "finish_reason": "stop"}

@rollout_trace_op(kind="TOOL")
def search(query):
    return text(60)

@rollout_trace_op
def turn(messages):
    answer = generate(messages)
    found = search(text(8))
    return [{"role": "assistant", "content": answer["response_text"]}, {"role": "tool", "content": found}]

for sample in range(int(sys.argv[1])):
    with rollout_trace_attr(sample_index=sample // 8, step=sample // 512, rollout_n=sample % 8):
        messages = [{"role": "system", "content": text(60)}, {"role": "user", "content": text(40)}]
        for _ in range(6):
            messages = [*messages, *turn(messages)]
        score("reward", chosen.random(), comment=text(10))
otel_rollout.shutdown(60)
"""


class Used(NamedTuple):
    """What a forwarder used: CPU seconds, and peak memory in MiB."""

    cpu: float
    memory: float


def run(quick: bool = False, only: str | None = None) -> dict[str, Any]:
    """Measure every part, or one."""
    return {name: part(quick) for name, part in PARTS.items() if only in (None, name)}


def write(quick: bool) -> dict[str, Any]:
    """Measure a forwarder that writes a table."""
    trajectories, rounds = (500, 1) if quick else (2_000, 3)
    spans = trajectories * SPANS_PER_TRAJECTORY
    with tempfile.TemporaryDirectory(prefix="otel-rollout-bench-") as directory, AcceptingServers() as server:
        work = Path(directory)
        recorded, single = _record(work / "many", trajectories), _record(work / "one", 1)
        table = {"OTEL_ROLLOUT_DELTA_URI": str(work / "table")}
        written: list[Used] = []
        for _ in range(rounds):
            start = _used(single, work / "copy", "delta", {"OTEL_ROLLOUT_DELTA_URI": str(work / "small")})
            whole = _used(recorded, work / "copy", "delta", table)
            written.append(Used(whole.cpu - start.cpu, whole.memory))
            size = _bytes(work / "table", "*.parquet")
            commits = len(list((work / "table" / "_delta_log").glob("*.json"))) - 1
            shutil.rmtree(work / "table")
            shutil.rmtree(work / "small")
        sent = _used(recorded, work / "copy", "otlp", server.variables)
        lines = _bytes(recorded, "*.jsonl")
    cpu = median(used.cpu for used in written)
    return {
        "spans": spans,
        "line_bytes": round(lines / spans),
        "spans_per_cpu_second": round(spans / cpu),
        "cpu_us": round(cpu / spans * 1e6, 1),
        "peak_mib": round(median(used.memory for used in written)),
        "peak_mib_of_otlp": round(sent.memory),
        "row_bytes": round(size / spans, 1),
        "part_of_lines": round(size / lines, 3),
        "commits": commits,
    }


PARTS = {"write": write}


def _bytes(directory: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in directory.rglob(pattern))


def _record(spool: Path, trajectories: int) -> Path:
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "spool", "OTEL_ROLLOUT_SPOOL_DIR": str(spool)}
    command = [sys.executable, "-c", _RECORD, str(trajectories)]
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    return spool


def _used(spool: Path, copy: Path, exporter: str, variables: Mapping[str, str]) -> Used:
    """Return what a forwarder uses that delivers a copy of a spool."""
    shutil.copytree(spool, copy)
    environment = {**os.environ, **variables, "OTEL_ROLLOUT_SPOOL_DIR": str(copy)}
    command = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "forward", "--to", exporter]
    with (copy.parent / "forwarder.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=copy, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError((copy.parent / "forwarder.log").read_text()[-2000:])
    shutil.rmtree(copy)
    return Used(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer spans, for a first impression")
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    given = parser.parse_args()
    print(json.dumps(run(given.quick, given.only), indent=1))
