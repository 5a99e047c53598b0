"""Name the process that recorded a span, and find processes that are slower than their peers."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from otel_rollout.base import semconv

_INSTANCE: Final = "service.instance.id"
_PID: Final = "process.pid"
_NODES: Final = ("host.name", "k8s.node.name", "k8s.pod.name", "host.id", "container.id")
"""Attributes of a resource that name the machine; the first that is present counts."""
_WRITER: Final = re.compile(r"(?P<writer>(?P<pid>\d+)-(?P<digits>[0-9a-f]+))\.\d+")
"""Segment id of the recorder: pid and random digits of the process, then the number of the segment."""
_DIGITS: Final = 6
"""Number of random digits that distinguish two processes with the same pid."""
MIN_CALLS: Final = 9
"""Minimum calls of a process in a step to compare it with its peers."""
SLOWER: Final = 1.5
"""Ratio to its peers' time from which a process is slow."""
_DEVIATIONS: Final = 3.0
"""Minimum surprise of a slow process, in standard deviations of a fair coin.

The surprise is how far the number of its calls above its peers' median exceeds one half of its calls.
"""


class Worker(NamedTuple):
    """A process that records spans, as its resource describes it.

    Attributes:
        node: its machine; empty if the resource names none.
        instance: ``service.instance.id``; empty if the resource has none.
        pid: its process id; empty if unknown.
        digits: random digits of the process; empty if another recorder wrote the span.
    """

    node: str
    instance: str
    pid: str
    digits: str


class SlowWorker(NamedTuple):
    """A process whose calls of one operation take longer than those of the other processes.

    Attributes:
        worker: the process.
        operation: the operation.
        seconds: median duration of its calls.
        others_seconds: median duration of the other processes' calls.
        calls: number of its calls.
        others_calls: number of the other processes' calls.
    """

    worker: Worker
    operation: str
    seconds: float
    others_seconds: float
    calls: int
    others_calls: int


def worker_of(resource: str | None) -> Worker | None:
    """Return the process that a span's column ``resource`` describes; None if it describes none."""
    try:
        attributes = json.loads(resource or "{}")
    except ValueError:
        return None
    if not isinstance(attributes, Mapping):
        return None
    match = _WRITER.fullmatch(_text(attributes, semconv.SEGMENT_ID))
    node = next((name for key in _NODES if (name := _text(attributes, key))), "")
    pid = _text(attributes, _PID) or (match["pid"] if match else "")
    worker = Worker(node, _text(attributes, _INSTANCE), pid, match["digits"] if match else "")
    return worker if any(worker) else None


def names_of(workers: Iterable[Worker]) -> dict[Worker, str]:
    """Return a name for each process; processes with the same name get some of their digits, too."""
    known = list(dict.fromkeys(workers))
    often = Counter(_name(worker) for worker in known)
    return {
        worker: f"{_name(worker)} ({worker.digits[:_DIGITS]})" if often[_name(worker)] > 1 else _name(worker)
        for worker in known
    }


def slow_workers(durations: Iterable[tuple[str, Worker, int]]) -> list[SlowWorker]:
    """Return the processes that are slower than their peers, the one that costs most first.

    A process is slow in an operation if three conditions hold. It has at least 9 calls. Their median is at
    least 1.5 times the median of the other processes' calls. And so many of its calls exceed the others'
    median that chance explains it in less than 1 of 700 processes (3 standard deviations).

    Args:
        durations: operation, process and nanoseconds of each call.
    """
    by_operation: dict[str, dict[Worker, list[int]]] = defaultdict(lambda: defaultdict(list))
    for operation, worker, duration in durations:
        by_operation[operation][worker].append(duration)
    found = [
        slow
        for operation, by_worker in by_operation.items()
        for worker, own in by_worker.items()
        if len(own) >= MIN_CALLS and (slow := _compared(operation, worker, own, by_worker))
    ]
    return sorted(found, key=lambda slow: (slow.others_seconds - slow.seconds) * slow.calls)


def _compared(
    operation: str, worker: Worker, own: Sequence[int], by_worker: Mapping[Worker, Sequence[int]]
) -> SlowWorker | None:
    others = [duration for other, each in by_worker.items() if other != worker for duration in each]
    if len(others) < MIN_CALLS:
        return None
    usual, mine = median(others), median(own)
    above = sum(duration > usual for duration in own)
    is_chance = above - len(own) / 2 < _DEVIATIONS * math.sqrt(len(own)) / 2
    if mine < SLOWER * usual or mine <= usual or is_chance:
        return None
    return SlowWorker(worker, operation, mine / 1e9, usual / 1e9, len(own), len(others))


def _text(attributes: Mapping[str, object], key: str) -> str:
    value = attributes.get(key)
    return "" if value is None else str(value)


def _name(worker: Worker) -> str:
    parts = (worker.instance, worker.pid and f"pid {worker.pid}", worker.node and f"on {worker.node}")
    return " ".join(filter(None, parts)) or worker.digits
