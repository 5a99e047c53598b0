"""Put the time of a step in sentences, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from otel_rollout.base.printable import in_one_line
from otel_rollout.look.analysis.timeline.phases import GENERATE, TOOL
from otel_rollout.look.analysis.timeline.step_time import PhaseTime
from otel_rollout.look.analysis.timeline.stragglers import HeldTime, Stragglers, Tail
from otel_rollout.look.analysis.timeline.timeline import Timeline
from otel_rollout.look.analysis.timeline.workers import SlowWorker
from otel_rollout.look.conversation.formatting import duration
from otel_rollout.otlp.engine_phases import DECODE, PREFILL, QUEUE

_PHRASES: Final = {
    "generate": "in model calls",
    "reward": "in reward functions",
    "waiting": "outside of any call",
    "unrecorded": "not recorded",
}
_ENGINE_PHRASES: Final = {
    QUEUE: "waiting in the engine's queue",
    PREFILL: "in the engine's prefill",
    DECODE: "in the engine's decode",
}
_MAX_PARTS: Final = 3
"""Maximum parts of the held time that a sentence names."""
_LEAST: Final = 0.02
"""Minimum share of the held time for a part to be named in a sentence."""


def title(timeline: Timeline) -> str:
    """Return the step's name."""
    if timeline.step is None:
        return "Validation without a step" if timeline.validate else "Trajectories without a step"
    return f"{'Validation step' if timeline.validate else 'Step'} {timeline.step}"


def summary(timeline: Timeline) -> str:
    """Return wall time, number and concurrency of the trajectories in one sentence."""
    number = len(timeline.lanes)
    wall = duration(timeline.wall_seconds)
    if number == 1:
        return f"One trajectory in {wall}."
    return (
        f"{number} trajectories in {wall}: {timeline.mean_running:.1f} at once on average, "
        f"{timeline.peak} at most."
    )


def straggling(timeline: Timeline) -> str:
    """Return which trajectories held the step and what they did, in one sentence."""
    found = timeline.stragglers
    if found is not None:
        return _held(found)
    if len(timeline.lanes) == 1:
        return "There is one trajectory, so no other one waited for it."
    if timeline.tail is not None:
        return _tail(timeline.tail, timeline)
    longest = max(timeline.lanes, key=lambda lane: (lane.seconds, lane.trace_id))
    return (
        "No stragglers: the step did not wait for a few trajectories alone. "
        f"The longest is {in_one_line(longest.name.path)}: {duration(longest.seconds)}."
    )


def slow(timeline: Timeline, worker: SlowWorker) -> str:
    """Return how much slower a process is than its peers, in one sentence."""
    name, operation = in_one_line(timeline.worker_names[worker.worker]), in_one_line(worker.operation)
    return (
        f"{name} is slower than its peers in {operation}: {duration(worker.seconds)} there, "
        f"{duration(worker.others_seconds)} elsewhere (medians of {worker.calls} and {worker.others_calls})."
    )


def notes(timeline: Timeline) -> Iterator[str]:
    """Yield notes that a reader needs to understand the figures."""
    if timeline.is_slowest:
        yield "This step has the longest wall time of the run."
    if timeline.untimed:
        number = len(timeline.lanes) + timeline.untimed
        yield f"The times of {timeline.untimed} of {number} trajectories are unknown: no figure counts them."
    if timeline.running:
        run, their = ("runs", "its") if timeline.running == 1 else ("run", "their")
        yield (
            f"{timeline.running} of {len(timeline.lanes)} trajectories still {run}, or lost {their} root "
            f"span: {their} time is counted until the newest span of the step."
        )
    if timeline.outside:
        yield (
            f"{timeline.outside} calls lie partly outside of their trajectory's time: clocks of machines "
            "differ, or calls outlived it. Only the part inside counts."
        )
    if not timeline.workers:
        yield "No process is known: the spans' resource names none."


class PhaseRow(NamedTuple):
    """A row of the table of phases: a phase, or within it a tool or a phase of the engine."""

    name: str
    is_inner: bool
    figures: tuple[str, ...]


def phase_rows(timeline: Timeline, most: int) -> Iterator[PhaseRow]:
    """Yield the rows of phases, of engine phases, and of the first ``most`` tools.

    Figures are the summed time, its share, the trajectories at once, and the share of the wall time.
    """
    for time in timeline.phases:
        yield PhaseRow(time.phase, False, _figures(time))
        if time.phase == GENERATE:
            yield from (PhaseRow(part.name, True, _figures(part)) for part in timeline.engine)
        if time.phase == TOOL:
            yield from (PhaseRow(each.name, True, _figures(each)) for each in timeline.tools[:most])
            if more := timeline.tools[most:]:
                total = duration(sum(each.seconds for each in more))
                yield PhaseRow(f"{len(more)} more tools", True, (total, "", "", ""))


def _figures(time: PhaseTime) -> tuple[str, ...]:
    return duration(time.seconds), f"{time.share:.1%}", f"{time.at_once:.1f}", f"{time.wall_share:.1%}"


def worker_rows(timeline: Timeline) -> list[tuple[str, ...]]:
    """Return name, number of trajectories, median and last end of each process."""
    return [
        (each.name, str(each.trajectories), duration(each.median_seconds), duration(each.last_seconds))
        for each in timeline.workers
    ]


def part(part: HeldTime) -> str:
    """Return a part of the held time in words."""
    if part.phase == TOOL:
        return f"{duration(part.seconds)} in tool `{in_one_line(part.name)}`"
    return f"{duration(part.seconds)} {_ENGINE_PHRASES.get(part.name) or _PHRASES[part.phase]}"


def _tail(found: Tail, timeline: Timeline) -> str:
    processes = {lane.worker for lane in found.lanes}
    worker = found.lanes[0].worker
    is_of_one = len(processes) == 1 and worker is not None and len(timeline.workers) > 1
    all_of = ", all of" if len(found.lanes) > 1 else ", of"
    where = f"{all_of} {in_one_line(timeline.worker_names[worker])}" if is_of_one and worker else ""
    held, wall = duration(found.seconds), duration(timeline.wall_seconds)
    ran = f"{len(found.lanes)} of {len(timeline.lanes)} trajectories"
    return f"For the last {held} of {wall}, only {ran} ran{where}."


def _held(found: Stragglers) -> str:
    number = len(found.lanes)
    who = "The slowest" if number == 1 else f"The slowest {number}"
    parts = [each for each in found.parts if each.seconds >= _LEAST * found.seconds] or list(found.parts)
    named = ", ".join(part(each) for each in parts[:_MAX_PARTS])
    rest = sum(each.seconds for each in parts[_MAX_PARTS:])
    named += f", {duration(rest)} in the rest" if rest else ""
    held = duration(found.seconds)
    if not found.running:
        return f"{who} of {found.of} held the step for {held}: {named}."
    of_them = f"{found.running} of them still run{'s' if found.running == 1 else ''}"
    has, still = ("has", "it still runs") if number == 1 else ("have", of_them)
    return f"{who} of {found.of} {has} held the step for {held} so far ({still}): {named}."
