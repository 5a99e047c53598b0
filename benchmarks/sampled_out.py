"""Measure what a trajectory that is sampled out costs, in seconds.

    python -m benchmarks.sampled_out

Three variants enter and leave a trajectory with one operation inside: with ``trace=False``, sampled out by
head sampling, and recorded. They take turns, so that a slow moment of the machine affects all of them. Groups
have eight siblings.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record import runtime
from otel_rollout.record.recording.sampling import GroupSampling
from otel_rollout.settings import Settings

ROUNDS, CALLS = 40, 2000
_numbers = itertools.count()


@rollout_trace_op
def _operation() -> None: ...


def _switched_off() -> Any:
    return rollout_trace_attr(step=1, sample_index=next(_numbers) // 8, rollout_n=0, trace=False)


def _trajectory() -> Any:
    return rollout_trace_attr(step=1, sample_index=next(_numbers) // 8, rollout_n=0)


def _microseconds(begin: Callable[[], Any], sampling: GroupSampling | None) -> float:
    active = runtime.current()
    assert active is not None
    active.sampling = sampling
    before = time.thread_time_ns()
    for _ in range(CALLS):
        with begin():
            _operation()
    return (time.thread_time_ns() - before) / CALLS / 1000


def main() -> None:
    """Measure and print medians."""
    nothing = GroupSampling(Settings(sample_rate=0.0))
    contestants: dict[str, tuple[Callable[[], Any], GroupSampling | None]] = {
        "trace=False": (_switched_off, None),
        "sampled out by group": (_trajectory, nothing),
        "recorded": (_trajectory, None),
        "recorded, where groups are sampled": (_trajectory, GroupSampling(Settings(sample_rate=1.0))),
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as spool:
        otel_rollout.configure("spool", spool_dir=Path(spool))
        taken: dict[str, list[float]] = {name: [] for name in contestants}
        order = random.Random(0)
        for _ in range(ROUNDS):
            for name in order.sample(list(contestants), len(contestants)):
                taken[name].append(_microseconds(*contestants[name]))
        otel_rollout.shutdown(0)
    for name, costs in taken.items():
        print(f"{name:36} {median(costs):6.2f} µs of CPU, best {min(costs):.2f}")


if __name__ == "__main__":
    main()
