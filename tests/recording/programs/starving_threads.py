"""Record in threads that compute: ``starving_threads.py THREADS CALLS LOOPS``.

Prints, as JSON, whether all was flushed, and the spans started, recorded and dropped.
"""

import json
import sys
import threading

import otel_rollout
from otel_rollout.record import runtime


@otel_rollout.rollout_trace_op
def grade(text: str, loops: int) -> str:
    """Add numbers in Python, holding the GIL."""
    total = 0
    for number in range(loops):
        total += number
    return text


def rollout(number: int, calls: int, loops: int) -> None:
    """Record a trajectory of operations."""
    with otel_rollout.rollout_trace_attr(step=1, sample_index=number):
        for _ in range(calls):
            grade("x" * 500, loops)


def main(threads: int, calls: int, loops: int) -> None:
    """Record one trajectory in each thread, and print the counts."""
    otel_rollout.configure("spool")
    started = [threading.Thread(target=rollout, args=(number, calls, loops)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    active = runtime.current()
    assert active is not None
    flushed = active.writer.flush(60)
    counts = active.writer.counts()
    print(json.dumps([flushed, counts.started, counts.recorded, sum(counts.drops.values())]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
