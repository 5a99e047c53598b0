"""Derive one run of the randomised crash test from its seed.

Everything is tied to progress rather than to time (so many spans ended, the so-manieth request), so that
a busy machine plays the same schedule as an idle one.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

ANSWERS = (
    "busy", "lost", "half", "reset", "slow", "kill before", "kill instead", "kill after",
)  # fmt: skip
"""What a target may do instead of taking a request; see :mod:`tests.soak.target`."""
DRIVER_ENDS = ("shutdown", "exit", "abrupt", "killed")
PROTOCOLS = ("http/json", "http/protobuf")
_WORK = ((100, 10), (400, 300), (100, 5_000), (20, 60_000))
"""Operations of a thread, and characters each of them takes and gives."""
_SEGMENT_BYTES = (2_000, 20_000, 200_000, 64 << 20)


@dataclass(frozen=True)
class Writer:
    """A process that records.

    Attributes:
        spans: operations each of its threads records.
        payload: characters each operation takes and gives.
        in_trajectory: operations per trajectory.
        forked: from the driver; otherwise started anew.
        dies_after: it kills itself when one of its threads has ended so many operations.
        killed_after: it is killed from outside when its threads have ended so many: at whatever instruction.
        stays: it does not end, and is killed when it has nothing left to do.
    """

    spans: int
    payload: int
    in_trajectory: int
    threads: int
    forked: bool
    dies_after: int | None
    killed_after: int | None
    stays: bool
    pause: float


@dataclass(frozen=True)
class Event:
    """Something that happens once so many spans have ended, or the job has."""

    after: int
    what: str
    number: int = 0
    """Of a target or a writer."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """All of it.

    Attributes:
        protocols: one target each.
        answers: for each target, what it does with its first requests; it takes all later ones.
        disk_megabytes: the spool lies on a file system of its own of that size, which is full for a while.
    """

    seed: int
    writers: tuple[Writer, ...]
    driver_end: str
    driver_killed_after: int
    protocols: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]
    events: tuple[Event, ...]
    segment_bytes: int
    spool_limit: int
    disk_megabytes: int | None

    @classmethod
    def of(cls, seed: int) -> Schedule:
        """The schedule of a seed."""
        draw = random.Random(seed)
        writers = tuple(_writer(draw) for _ in range(draw.randint(1, 4)))
        total = sum(writer.spans * writer.threads for writer in writers)
        protocols = tuple(draw.choice(PROTOCOLS) for _ in range(draw.choice((1, 1, 2))))
        on_disk = draw.random() < 0.15
        return cls(
            seed=seed,
            writers=writers,
            driver_end=draw.choice(DRIVER_ENDS),
            driver_killed_after=draw.randint(1, total),
            protocols=protocols,
            answers=tuple(_answers(draw) for _ in protocols),
            events=tuple(_events(draw, total, len(protocols), len(writers), on_disk)),
            segment_bytes=draw.choice(_SEGMENT_BYTES),
            spool_limit=draw.choice((0, 0, 0, 0, 0, 0, 300_000)),
            disk_megabytes=48 if on_disk else None,
        )

    @property
    def late(self) -> set[int]:
        """Writers that are not started by the driver."""
        return {event.number for event in self.events if event.what == "another writer"}

    def __str__(self) -> str:
        lines = [f"seed {self.seed}"]
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            parts = value if isinstance(value, tuple) else (value,)
            lines += [f"  {field.name}: {part}" for part in parts]
        return "\n".join(lines)


def _writer(draw: random.Random) -> Writer:
    spans, payload = draw.choice(_WORK)
    ends = [draw.randint(1, spans), None, None]
    draw.shuffle(ends)
    return Writer(
        spans=spans,
        payload=payload,
        in_trajectory=draw.choice((1, 7, 1000)),
        threads=draw.choice((1, 1, 3)),
        forked=draw.random() < 0.6,
        dies_after=ends[0],
        killed_after=ends[1],
        stays=draw.random() < 0.3,
        pause=draw.choice((0.0, 0.0, 0.001, 0.005)),
    )


DRIVER = Writer(
    spans=5, payload=10, in_trajectory=5, threads=1, forked=False, dies_after=None, killed_after=None,
    stays=False, pause=0.0,
)  # fmt: skip
"""What the driver itself records, before it starts the writers."""


def _answers(draw: random.Random) -> tuple[str, ...]:
    """Never many failures in a row: the pauses between attempts double."""
    answers: list[str] = []
    for _ in range(draw.randint(0, 4)):
        answers += ["take"] * draw.randint(0, 3)
        answers.append(draw.choice(ANSWERS))
    return tuple(answers)


def _events(draw: random.Random, total: int, targets: int, writers: int, on_disk: bool) -> list[Event]:
    events = [
        Event(
            draw.randint(0, total),
            draw.choice(("kill forwarder", "kill forwarder", "start forwarders", "target refuses")),
            draw.randrange(targets),
            draw.uniform(0.2, 1.5),
        )
        for _ in range(draw.randint(0, 4))
    ]
    if on_disk:
        events.append(Event(draw.randint(0, total // 2), "disk is full", 0, draw.uniform(0.2, 2)))
    if writers > 1 and draw.random() < 0.3:
        events.append(Event(draw.randint(1, total // 2), "another writer", writers - 1))
    return sorted(events, key=lambda event: event.after)
