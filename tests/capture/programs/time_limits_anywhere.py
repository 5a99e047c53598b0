"""Record under time limits, then without: ``time_limits_anywhere.py SECONDS``.

Prints, as JSON, the number of time limits that struck, the spans recorded afterwards, and whether none of
these was dropped.
"""

import json
import random
import signal
import sys
import time

import otel_rollout
from otel_rollout.record import runtime
from tests.capture.test_signals import TimeLimit, one_trajectory


def ring(*_: object) -> None:
    """Raise, as the handler of a time limit."""
    raise TimeLimit("now")


def record_under_time_limits(seconds: float) -> int:
    """Record trajectories under time limits; return how many limits struck."""
    chance, seen = random.Random(1), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-5, 5e-4))
            for _ in range(30):
                one_trajectory()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeLimit:
            seen += 1
    return seen


def main(seconds: float) -> None:
    """Record one trajectory, interrupted ones, and fifty more."""
    otel_rollout.configure("spool")
    one_trajectory()
    signal.signal(signal.SIGALRM, ring)
    seen = record_under_time_limits(seconds)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    active = runtime.current()
    assert active is not None
    before = active.writer.counts()
    for _ in range(50):
        one_trajectory()
    after = active.writer.counts()
    print(json.dumps([seen, after.recorded - before.recorded, after.drops == before.drops]))


if __name__ == "__main__":
    main(float(sys.argv[1]))
