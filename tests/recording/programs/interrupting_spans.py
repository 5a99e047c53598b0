"""Record large spans while other code interrupts: ``interrupting_spans.py signals|finalizers``.

Signal handlers, or finalizers, record spans, too. Prints, as JSON, whether all was flushed, and the spans
started, recorded and dropped.
"""

import gc
import json
import signal
import sys
import threading
import time
from types import FrameType
from typing import Final

import otel_rollout
from otel_rollout.record import runtime

LARGE: Final = "x" * 500_000
"""Text of a span; eight of them fill the journal."""
SPANS: Final = 150
COLLECTIONS, CYCLES = 5, 2000
"""Garbage collections, and the objects that each finds."""
interruptions = 0


@otel_rollout.rollout_trace_op
def answer(prompt: str) -> int:
    """Record a span with a text."""
    return len(prompt)


def record_interrupting(_number: int = 0, _frame: FrameType | None = None) -> None:
    """Record a few spans in the middle of other code."""
    global interruptions
    interruptions += 1
    for _ in range(3):
        answer("short")


class InCycle:
    """An object that only a garbage collection removes, in any thread."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        record_interrupting()


def leave_cycles() -> None:
    """Leave cycles to collections, which any thread may begin."""
    for left in range(0, COLLECTIONS * CYCLES, CYCLES):
        while interruptions < left:
            time.sleep(0.0007)
        gc.disable()
        for _ in range(CYCLES):
            InCycle()
        gc.enable()


def record_large_spans() -> None:
    """Record faster than the journal is emptied."""
    for _ in range(SPANS):
        answer(LARGE)


def record_amid_signals() -> None:
    """Record while a timer rings."""
    signal.signal(signal.SIGALRM, record_interrupting)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    record_large_spans()
    signal.setitimer(signal.ITIMER_REAL, 0)


def record_amid_finalizers() -> None:
    """Record while collections find cycles."""
    leaving = threading.Thread(target=leave_cycles)
    leaving.start()
    record_large_spans()
    while interruptions < COLLECTIONS * CYCLES:
        gc.collect()
        time.sleep(0.01)
    leaving.join()


def main(interruption: str) -> None:
    """Record, interrupted, and print the counts."""
    otel_rollout.configure("spool")
    with otel_rollout.rollout_trace_attr(step=1, sample_index=0):
        {"signals": record_amid_signals, "finalizers": record_amid_finalizers}[interruption]()
    active = runtime.current()
    assert active is not None
    flushed = active.writer.flush(60)
    counts = active.writer.counts()
    print(json.dumps([flushed, counts.started, counts.recorded, sum(counts.drops.values())]))


if __name__ == "__main__":
    main(sys.argv[1])
