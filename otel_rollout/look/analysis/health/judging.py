"""Judge how often something is found in each step, and say it with its denominator."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from otel_rollout.look.analysis.health.findings import HEALTHY, UNHEALTHY, UNOBSERVED, Finding, unobserved
from otel_rollout.look.analysis.health.rates import (
    MIN_BASELINE,
    Count,
    RateLimits,
    evidence_of,
    excess,
    of_steps,
    percent,
    share_of,
    steps_of,
)
from otel_rollout.look.conversation.formatting import steps_in_words


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
    """Return what some steps of a series show, compared with all steps before them.

    Args:
        counts: a count for each step of the run.
        fault: what is counted.
        steps: the steps whose fault is a finding.
        note: what a reader must know of the numbers; it begins with a space.
    """
    chosen = of_steps(counts, steps)
    if not sum(count.of for count in chosen):
        return unobserved(fault.missing)
    found = excess(counts, fault.limits).of_steps(steps)
    if not found.counts:
        return Finding("healthy", _good(counts, chosen, fault) + note)
    numbers = steps_of(found.counts)
    message = f"{_shares(found.counts, fault, f' in {steps_in_words(numbers)}')}.{earlier(found.usual)}{note}"
    return Finding("unhealthy", message, numbers, evidence_of(found.counts))


def of_several(*findings: Finding) -> Finding:
    """Return one finding of several about parts of a run: what is unhealthy, else what is healthy."""
    order = (UNHEALTHY, HEALTHY, UNOBSERVED)
    status = min((each.status for each in findings), key=order.index)
    chosen = [each for each in findings if each.status == status]
    return Finding(
        status,
        " ".join(each.message for each in chosen),
        tuple(sorted({step for each in chosen for step in each.steps})),
        tuple(trace for each in chosen for trace in each.evidence),
    )


def steps_of_message(found: Finding, steps: Container[int | None]) -> Container[int | None]:
    """Return the steps that a finding's message is about: those with the fault, else all that are judged."""
    return found.steps or steps


def parts(counts: Sequence[Count], of: str) -> str:
    """Return how many have it, of how many: ``26 of the 53 trajectories with a tool call``."""
    bad, number = sum(count.bad for count in counts), sum(count.of for count in counts)
    return f"{bad:,} of the {number:,} {of}"


def earlier(usual: float | None) -> str:
    """Return the usual share as a sentence after another one; nothing if it is unknown."""
    return "" if usual is None else f" Earlier, it was {percent(usual)}."


def _good(counts: Sequence[Count], chosen: Sequence[Count], fault: Fault) -> str:
    """Return why the chosen steps are healthy."""
    number = f"{sum(count.of for count in chosen):,}"
    if not any(count.bad for count in chosen):
        return (fault.none or f"None of the {{of}} {fault.of} has {fault.has}.").format(of=number)
    if share_of(chosen) >= fault.limits.always:
        return f"{_shares(chosen, fault)}: too few to tell from chance."
    before = sorted(count.step for count in counts if count.of and count.step is not None)
    can_rise = any(count.step is None or count.step in before[MIN_BASELINE:] for count in chosen)
    rise = ", and no step rises above the earlier ones" if can_rise else ""
    return f"{_shares(chosen, fault)}: below the limit of {percent(fault.limits.always)}{rise}."


def _shares(counts: Sequence[Count], fault: Fault, where: str = "") -> str:
    verb = "has" if sum(count.bad for count in counts) == 1 else "have"
    return f"{parts(counts, fault.of)}{where} ({percent(share_of(counts))}) {verb} {fault.has}"
