"""Judge how often a fault occurs per step, against fixed limits and the run's earlier steps.

A steady rate is no finding, unless it reaches a fixed limit. A rise is a finding if it is large, and if
chance does not explain it. One step of a short run may be too small to rule out chance. So a few steps in a
row are also judged together, by an exact test. The test counts groups, because siblings often fail together.
It needs the number of groups of each step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from otel_rollout.look.analysis.health.findings import (
    HEALTHY,
    MAX_EVIDENCE,
    UNHEALTHY,
    UNOBSERVED,
    Finding,
    unobserved,
)
from otel_rollout.look.analysis.rises import risen_at
from otel_rollout.look.conversation.formatting import percent, steps_in_words

_BASELINE: Final = 20
"""Maximum earlier steps without a finding whose share counts as usual."""
MIN_BASELINE: Final = 2
"""Minimum earlier steps without a finding to judge a rise."""
_POOLED: Final = 5
"""Maximum steps in a row that are judged together, so that one small step alone is no finding."""
_LIMIT_SURPRISE: Final = 8.0
"""Minimum surprise, in nats, of a share above the fixed limit, compared with a good run."""
_NEARLY_ALL: Final = 0.9
"""Share from which surprise is not tested: nine of ten are many in a small step too."""
_CHANCE: Final = 0.005
"""Maximum probability that chance explains a rise of several steps together."""
_UNSURE_CHANCE: Final = 0.01
"""Maximum probability that chance explains a rise that is told without a verdict."""
_MIN_BAD: Final = 3
"""Minimum number of trajectories with a fault for a finding."""


class RateLimits(NamedTuple):
    """When a share is unhealthy.

    Attributes:
        rise: least share that a rise must reach.
        always: share from which a step is unhealthy without a comparison, unless chance explains it.
        steady: share that a good run may have in all its steps.
        factor: least ratio of a rise to the usual share.
        surprise: least surprise of a rise, in nats. It is large, because it is computed as if siblings were
            independent.
    """

    rise: float
    always: float
    steady: float
    factor: float = 3.0
    surprise: float = 35.0


@dataclass(frozen=True)
class Count:
    """How many of a step's trajectories have a fault.

    Attributes:
        step: the step; None for trajectories without one.
        bad: number of trajectories with the fault.
        of: number of trajectories whose recording tells whether they have the fault.
        evidence: trace ids of some trajectories with the fault.
        bad_groups: number of groups with such a trajectory.
        groups: number of groups whose recording tells; 0 if the number is unknown.
    """

    step: int | None
    bad: int
    of: int
    evidence: tuple[str, ...] = ()
    bad_groups: int = 0
    groups: int = 0

    @property
    def share(self) -> float:
        """Share of the trajectories with the fault, from 0 to 1."""
        return self.bad / self.of if self.of else 0.0


class Excess(NamedTuple):
    """The unhealthy steps of a series.

    Attributes:
        counts: the counts of the unhealthy steps.
        usual: the share in the earlier steps that are healthy; None if there are too few such steps.
    """

    counts: list[Count]
    usual: float | None


def of_steps(counts: Iterable[Count], steps: Container[int | None]) -> list[Count]:
    """Return the counts of some steps."""
    return [count for count in counts if count.step in steps]


def excess(counts: Iterable[Count], limits: RateLimits, steps: Container[int | None]) -> Excess:
    """Return which of ``steps`` have too high a share, by fixed limits or compared with earlier steps."""
    ordered = _ordered(counts)
    found: dict[int, Count] = {}
    calm: dict[int, Count] = {}
    usual: float | None = None
    for place, count in enumerate(ordered):
        before = _latest(calm)
        is_high = _is_high(ordered[max(0, place - _POOLED + 1) : place + 1], limits)
        if is_high or (len(before) >= MIN_BASELINE and _is_rise(count, before, limits)):
            usual = share_of(before) if usual is None and len(before) >= MIN_BASELINE else usual
            found[place] = count
            continue
        calm[place] = count
        if risen := _risen_together(ordered, place, calm, limits):
            found.update((each, ordered[each]) for each in risen)
            for each in risen:
                calm.pop(each, None)
            usual = share_of(_latest(calm)) if usual is None else usual
    if found and ordered[min(found)].step is None:  # it is the last one here, but nobody knows when it was
        usual = None
    return Excess(of_steps((found[place] for place in sorted(found)), steps), usual)


def unsure(counts: Iterable[Count], limits: RateLimits, steps: Container[int | None]) -> Excess:
    """Return which of ``steps`` follow a rise that is too small for :func:`excess`, but is no chance."""
    ordered = _ordered(counts)
    place = risen_at([count.of for count in ordered], [count.bad for count in ordered]) or 0
    before, after = ordered[:place], ordered[place:]
    is_rise = sum(count.bad for count in after) >= _MIN_BAD and _reaches(share_of(after), before, limits)
    if before and is_rise and _chance(after, before) <= _UNSURE_CHANCE:
        return Excess(of_steps(after, steps), share_of(before))
    compared = ((count, ordered[max(0, at - _BASELINE) : at]) for at, count in enumerate(ordered))
    alone = [each for each in compared if each[0].step in steps and _is_unsure(*each, limits)]
    return Excess([count for count, _ in alone], share_of(alone[0][1]) if alone else None)


def _is_unsure(count: Count, before: Sequence[Count], limits: RateLimits) -> bool:
    """Return whether a step alone is a rise that is no chance, even if the siblings of a group end alike."""
    if len(before) < MIN_BASELINE or count.bad < _MIN_BAD or not _reaches(count.share, before, limits):
        return False
    return count.groups * _nats(count, before) >= -math.log(_UNSURE_CHANCE)


def _ordered(counts: Iterable[Count]) -> list[Count]:
    return sorted((count for count in counts if count.of), key=lambda count: (count.step is None, count.step))


def _latest(calm: dict[int, Count], without: Container[int] = ()) -> Sequence[Count]:
    """Return the latest counts to judge the next step by, except those at the places in ``without``."""
    counts = (count for place, count in reversed(calm.items()) if place not in without)
    return list(itertools.islice(counts, _BASELINE))


def _risen_together(
    ordered: Sequence[Count], last: int, calm: dict[int, Count], limits: RateLimits
) -> Sequence[int]:
    """Return the places of the fewest steps in a row, up to ``last``, that are a rise together."""
    for number in range(2, min(_POOLED, last) + 1):
        places = range(last - number + 1, last + 1)
        pooled = [ordered[place] for place in places]
        before = _latest(calm, places)
        if len(before) < MIN_BASELINE or not all(_reaches(each.share, before, limits) for each in pooled):
            continue
        whole = Count(None, sum(each.bad for each in pooled), sum(each.of for each in pooled))
        if _is_rise(whole, before, limits) and _chance(pooled, before) <= _CHANCE:
            return places
    return ()


def _chance(pooled: Sequence[Count], before: Sequence[Count]) -> float:
    """Return the probability of so many bad groups in some steps, by Fisher's exact test; 1 if unknown."""
    if not all(each.groups for each in (*pooled, *before)):
        return 1.0
    bad, number = sum(each.bad_groups for each in pooled), sum(each.groups for each in pooled)
    all_bad = bad + sum(each.bad_groups for each in before)
    whole = number + sum(each.groups for each in before)
    draws = _log_choices(whole, number)
    return sum(
        math.exp(_log_choices(all_bad, drawn) + _log_choices(whole - all_bad, number - drawn) - draws)
        for drawn in range(bad, min(all_bad, number) + 1)
        if number - drawn <= whole - all_bad
    )


def _log_choices(of: int, chosen: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)


def _is_high(pooled: Sequence[Count], limits: RateLimits) -> bool:
    """Return whether the last of some steps, and all of them together, reach the fixed limit."""
    bad, share = sum(count.bad for count in pooled), share_of(pooled)
    if bad < _MIN_BAD or pooled[-1].share < limits.always or share < limits.always:
        return False
    of = sum(count.of for count in pooled)
    return share >= _NEARLY_ALL or of * surprise(share, limits.steady) >= _LIMIT_SURPRISE


def _is_rise(count: Count, before: Sequence[Count], limits: RateLimits) -> bool:
    if count.bad < _MIN_BAD or not _reaches(count.share, before, limits):
        return False
    return count.of * _nats(count, before) >= limits.surprise


def _nats(count: Count, before: Sequence[Count]) -> float:
    """Return the surprise of a step's share after earlier ones, in nats per observation."""
    smoothed = (sum(each.bad for each in before) + 1) / (sum(each.of for each in before) + 2)
    return surprise(count.share, smoothed)


def _reaches(share: float, before: Sequence[Count], limits: RateLimits) -> bool:
    """Return whether a share is large enough for a rise, even if by chance."""
    return share >= max(limits.rise, limits.factor * share_of(before))


def surprise(share: float, expected: float) -> float:
    """Return the Kullback-Leibler divergence of a share from the expected one, in nats per observation."""
    parts = ((share, expected), (1 - share, 1 - expected))
    return sum(part * math.log(part / usual) for part, usual in parts if part > 0)


def share_of(counts: Sequence[Count]) -> float:
    """Return the share of several steps together."""
    of = sum(count.of for count in counts)
    return sum(count.bad for count in counts) / of if of else 0.0


def steps_said(counts: Iterable[Count]) -> str:
    """Return the steps of counts as text."""
    return steps_in_words(count.step for count in counts)


def fault_in(counts: Sequence[Count], message: str) -> Finding:
    """Return the finding that some steps have a fault, with some evidence of each, the first steps first."""
    columns = itertools.zip_longest(*(count.evidence for count in counts))
    found = (trace for column in columns for trace in column if trace)
    evidence = tuple(itertools.islice(dict.fromkeys(found), MAX_EVIDENCE))
    return Finding("unhealthy", message, tuple({count.step: None for count in counts}), evidence)


def too_few(
    counts: Sequence[Count], message: str, note: str = "", why: str = " These are too few to be sure."
) -> Finding:
    """Return the finding that some steps have much of a fault, in too few trajectories for a verdict."""
    return replace(fault_in(counts, message + why + note), status=UNOBSERVED, steps=())


# --- findings ----------------------------------------------------------------------------------------------


_ONE: Final = {"trajectories": "trajectory", "groups": "group"}
"""Plural → singular of what can have a fault."""


class Fault(NamedTuple):
    """A fault that some of the trajectories of a step have.

    Attributes:
        limits: when its share is unhealthy.
        of: what could have it, in the plural: ``trajectories with a tool call``.
        has: what those with the fault have: ``one that cannot be parsed``.
        missing: why the check is unobserved if nothing could have it.
        none: the message if nothing has it, with ``{of}`` for the number of those that could.
    """

    limits: RateLimits
    of: str
    has: str
    missing: str
    none: str = ""


def judged(counts: Sequence[Count], fault: Fault, steps: Container[int | None], note: str = "") -> Finding:
    """Return the finding on a fault in some steps, by fixed limits and compared with earlier steps.

    Args:
        counts: a count for each step of the run.
        fault: what is counted.
        steps: the steps whose fault is a finding.
        note: what a reader must know of the numbers; it begins with a space.
    """
    chosen = of_steps(counts, steps)
    if not sum(count.of for count in chosen):
        return unobserved(fault.missing)
    found = excess(counts, fault.limits, steps)
    rise = found if found.counts else unsure(counts, fault.limits, steps)
    if not rise.counts and share_of(chosen) >= fault.limits.always:
        return too_few(chosen, _shares(chosen, fault), note, ": too few to tell from chance.")
    if not rise.counts:
        return Finding(HEALTHY, _good(counts, chosen, fault) + note)
    shares = _shares(rise.counts, fault, f" in {steps_said(rise.counts)}")
    message = f"{shares}.{earlier(rise.usual)}"
    return fault_in(rise.counts, message + note) if found.counts else too_few(rise.counts, message, note)


def of_several(*findings: Finding) -> Finding:
    """Merge findings on parts of a run: the unhealthy ones, those too few, the healthy ones, or all."""
    ranks = [(each.status != UNHEALTHY, not each.is_told, each.status != HEALTHY) for each in findings]
    chosen = [each for each, rank in zip(findings, ranks, strict=True) if rank == min(ranks)]
    return Finding(
        chosen[0].status,
        " ".join(each.message for each in chosen),
        tuple({step: None for each in chosen for step in each.steps}),
        tuple(trace for each in chosen for trace in each.evidence),
    )


def parts(counts: Sequence[Count], of: str) -> str:
    """Return how many have a fault, at least one: ``26 of the 53 trajectories with a tool call``."""
    bad, number = sum(count.bad for count in counts), sum(count.of for count in counts)
    if number == 1:
        return f"the only {_one(of)}"
    return f"{bad:,} of the {number:,} {of}"


def _one(of: str) -> str:
    """Return the singular: ``trajectory with a tool call``."""
    plural, _, rest = of.partition(" ")
    return f"{_ONE[plural]} {rest}"


def earlier(usual: float | None) -> str:
    """Return the usual share as a sentence after another one; nothing if it is unknown."""
    return "" if usual is None else f" Earlier, it was {percent(usual)}."


def _good(counts: Sequence[Count], chosen: Sequence[Count], fault: Fault) -> str:
    """Return why the chosen steps are healthy."""
    number = sum(count.of for count in chosen)
    if not any(count.bad for count in chosen):
        if number == 1:
            return f"No {_one(fault.of)} has {fault.has}: there is only one."
        return (fault.none or f"None of the {{of}} {fault.of} has {fault.has}.").format(of=f"{number:,}")
    before = sorted(count.step for count in counts if count.of and count.step is not None)
    can_rise = any(count.step is None or count.step in before[MIN_BASELINE:] for count in chosen)
    rise = ", and no step is clearly above the steps before it" if can_rise else ""
    return f"{_shares(chosen, fault)}: below the limit of {percent(fault.limits.always)}{rise}."


def _shares(counts: Sequence[Count], fault: Fault, where: str = "") -> str:
    verb = "has" if sum(count.bad for count in counts) == 1 else "have"
    said = parts(counts, fault.of)
    return f"{said[0].upper()}{said[1:]}{where} ({percent(share_of(counts))}) {verb} {fault.has}"
