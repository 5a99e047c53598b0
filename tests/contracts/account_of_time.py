"""Account for the time of trajectories and steps, by the rules of why.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tests.contracts.account import Trajectory
from tests.contracts.made_spans import Made


def phases_of(trajectory: Trajectory) -> Counter[str]:
    """Return the milliseconds of each phase of an ended trajectory.

    Calls count inside its time, and a reward function after its end too.
    """
    assert trajectory.end is not None
    begin, end = trajectory.begin, trajectory.end
    shares = _shares(trajectory, begin, {"LLM": end, "TOOL": end, "EVALUATOR": None})
    found = Counter(_PHASES[kind] for kind in shares.values())
    found["waiting"] = _end_with_rewards(trajectory) - begin - len(shares)
    return found


_PHASES = {"LLM": "generate", "TOOL": "tool", "EVALUATOR": "reward"}


def _shares(trajectory: Trajectory, begin: int, ends: dict[str, int | None]) -> dict[int, str]:
    """Return the kind of call that each moment in calls belongs to: of the call that began first."""
    found: dict[int, str] = {}
    reached = begin
    for start, length, kind in sorted(
        _clipped(span, begin, ends) for span in trajectory.spans if span.kind in ends
    ):
        end = start - length
        found |= dict.fromkeys(range(max(start, reached), end), kind)
        reached = max(reached, end)
    return found


def _clipped(call: Made, first: int, ends: dict[str, int | None]) -> tuple[int, int, str]:
    """Return begin, negative length and kind of a call, in the order in which calls take time."""
    last = ends[call.kind]
    begin, end = max(call.begin, first), call.end if last is None else min(call.end, last)
    return begin, begin - end, call.kind


def bounds_of(step: Sequence[Trajectory]) -> list[tuple[int, int]]:
    """Return begin and end of each trajectory, the last end first; one that runs ends with the step."""
    last = max(_newest(one) for one in step)
    ends = [last if one.end is None else _end_with_rewards(one) for one in step]
    return sorted(
        ((one.begin, end) for one, end in zip(step, ends, strict=True)),
        key=lambda each: each[1],
        reverse=True,
    )


def sentence_of(step: Sequence[Trajectory], named: int) -> dict[str, object]:
    """Return what a sentence on stragglers may say that names so many trajectories.

    ``held`` is how long these held the step, ``is_fit`` whether they are few, held it for a tenth of its time
    and had begun before. If none is named, ``is_end`` says whether a tenth or fewer ran for the last fifth:
    after all others had ended, and since one of them had begun.
    """
    bounds, number = bounds_of(step), len(step)
    wall, tenth = bounds[0][1] - min(begin for begin, _ in bounds), math.ceil(number / 10)
    if not named:
        first = min(begin for begin, _ in bounds[:tenth])
        end = bounds[0][1] - max(bounds[tenth][1], first) if number > tenth else 0
        return {"is_end": end > 0 and end * 5 >= wall}
    since = bounds[named][1]
    held = bounds[0][1] - since
    is_few = named <= max(tenth, min(3, number // 3), 1)
    have_begun = all(begin < since for begin, _ in bounds[:named])
    return {"held": held / 1000, "parts": held / 1000, "is_fit": is_few and have_begun and held * 10 >= wall}


def timeline_of(step: Sequence[Trajectory]) -> dict[str, int]:
    """Return milliseconds of a step: of its wall time, and of all trajectories together in each phase."""
    last = max(_newest(one) for one in step)
    found = Counter[str]()
    begins, ends = [], []
    for one in step:
        known = one.end is not None
        end = _end_with_rewards(one) if known else _newest(one)
        inside = one.end if one.end is not None else end
        shares = _shares(one, one.begin, {"LLM": inside, "TOOL": inside, "EVALUATOR": None})
        found.update(_PHASES[kind] for kind in shares.values())
        found["waiting"] += end - one.begin - len(shares)
        found["unrecorded"] += 0 if known else last - end
        begins.append(one.begin)
        ends.append(end if known else last)
    return {**found, "wall": max(ends) - min(begins)}


def _newest(one: Trajectory) -> int:
    # a clock may go back: such a span ends where it begins
    return max(max(span.begin, span.end) for span in one.spans if span.evaluation is None)


def _end_with_rewards(one: Trajectory) -> int:
    assert one.end is not None
    rewards = [span for span in one.spans if span.kind == "EVALUATOR" and span.evaluation is None]
    return max([one.end, *(span.end for span in rewards if span.end > span.begin)])  # a clock may go back
