"""Count what one traced call costs, in counts that are equal on every machine.

    python -m benchmarks.counts [--renew]

The counts are the bytecode instructions of all Python code that the call runs, and the peak of bytes that it
allocates. Both are the minimum of many calls, because single calls meet the end of the ring or a dict that
grows. ``make test`` compares them with ``results/counts.json``. ``--renew`` writes that file, for a change
that is meant to cost more or less. Instructions differ between versions of Python; CI's version counts.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import otel_rollout
from benchmarks.tracers import PAYLOAD, RESULT
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.recording.state import state

BASELINE = Path(__file__).parent / "results" / "counts.json"
Counts = dict[str, dict[str, int]]
_CALLS = 30


@rollout_trace_op
async def operation(payload: dict[str, Any]) -> dict[str, Any]:
    """Return about 2 KB for about 2 KB of arguments."""
    return RESULT


def call() -> None:
    """Run one call of the operation without an event loop."""
    try:
        operation(PAYLOAD).send(None)
    except StopIteration:
        return


def trajectory() -> None:
    """Enter and leave an empty trajectory."""
    with rollout_trace_attr(step=1, sample_index=3, rollout_n=0):
        pass


def instructions(called: Callable[[], None]) -> int:
    """Count the bytecode instructions of a call."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        called()
    finally:
        sys.settrace(before)
    return count


def peak_bytes(called: Callable[[], None]) -> int:
    """Measure the peak of bytes that a call allocates."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    called()
    return tracemalloc.get_traced_memory()[1] - before


def counts_of(called: Callable[[], None]) -> dict[str, int]:
    """Return the minimum of both counts over several calls."""
    taken = min(instructions(called) for _ in range(_CALLS))
    tracemalloc.start()
    try:
        return {"instructions": taken, "peak_bytes": min(peak_bytes(called) for _ in range(_CALLS))}
    finally:
        tracemalloc.stop()


@contextmanager
def recording(**configuration: Any) -> Iterator[None]:
    """Record into a spool that no forwarder reads."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        otel_rollout.configure({"spool": {}}, spool_dir=Path(directory), **configuration)
        yield
        otel_rollout.shutdown(0)


def measure() -> Counts:
    """Count every case."""
    with recording():
        with rollout_trace_attr(step=1, sample_index=3, rollout_n=0):
            on = counts_of(call)
            state.off = True
            off = counts_of(call)
            state.off = False
        with rollout_trace_attr(trace=False):
            not_traced = counts_of(call)
        whole = counts_of(trajectory)
    with recording(sampler="always_off"):
        left_out = counts_of(trajectory)
        with rollout_trace_attr(step=1, sample_index=3, rollout_n=0):
            sampled_out = counts_of(call)
    return {
        "operation, off": off,
        "operation, trace=False": not_traced,
        "operation, sampled out": sampled_out,
        "operation, 2 KB in and 2 KB out": on,
        "trajectory, sampled out": left_out,
        "trajectory": whole,
    }


def main() -> None:
    """Print the counts, or write the baseline."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counts", description=__doc__)
    parser.add_argument("--renew", action="store_true", help="write them to results/counts.json")
    version = ".".join(platform.python_version_tuple()[:2])
    written = json.dumps({"python": version, "counts": measure()}, indent=1)
    if parser.parse_args().renew:
        BASELINE.write_text(written + "\n")
    print(written)


if __name__ == "__main__":
    main()
