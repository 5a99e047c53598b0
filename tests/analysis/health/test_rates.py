"""Rates per step are judged against fixed limits and against earlier steps."""

from __future__ import annotations

import random

import pytest

from otel_rollout.look.analysis.health.findings import Finding
from otel_rollout.look.analysis.health.rates import Count, Fault, RateLimits, excess, judged, of_several
from otel_rollout.look.conversation.formatting import steps_in_words

LIMITS = RateLimits(rise=0.1, always=0.5, steady=0.35)
_FAULT = Fault(LIMITS, "trajectories with a call", "a broken one", "No call was recorded.")


def steps(*shares: float, of: int = 200) -> list[Count]:
    return [Count(step, round(share * of), of, (f"{step}/0/0",)) for step, share in enumerate(shares, 1)]


def unhealthy(counts: list[Count], limits: RateLimits = LIMITS) -> list[int | None]:
    return [count.step for count in excess(counts, limits, {count.step for count in counts}).counts]


def test_steady_rate_is_no_fault() -> None:
    """A hard task may cut four of ten replies in every step."""
    assert unhealthy(steps(*[0.4] * 10)) == []


def test_rate_that_falls_while_the_model_learns_is_no_fault() -> None:
    """The first steps of a training are the worst."""
    assert unhealthy(steps(0.45, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)) == []


def test_rate_that_rises_and_stays_is_a_fault_until_the_end() -> None:
    """The unhealthy steps do not become the usual ones."""
    assert unhealthy(steps(*[0.03] * 5, *[0.3] * 30)) == list(range(6, 36))


def test_burst_is_a_fault_for_its_steps() -> None:
    """After it, steps are healthy again."""
    assert unhealthy(steps(0.02, 0.03, 0.02, 0.4, 0.02)) == [4]


def test_rate_above_the_fixed_limit_is_a_fault_from_the_first_step() -> None:
    """No earlier step is needed."""
    assert unhealthy(steps(0.6, 0.7)) == [1, 2]


def test_few_trajectories_are_no_fault() -> None:
    """Two of three say nothing."""
    assert unhealthy(steps(0, 0, 0, 0.66, of=3)) == []
    assert unhealthy([Count(1, 1, 1)]) == []


def test_trajectories_without_a_step_are_judged_last() -> None:
    """They have no number among the steps."""
    counts = [*steps(0.02, 0.02, 0.02), Count(None, 150, 200, ("-/0/0",))]
    finding = judged(counts, _FAULT, {None})
    assert (finding.status, finding.steps, finding.evidence) == ("unhealthy", (None,), ("-/0/0",))
    assert "Earlier" not in finding.message  # nobody knows when they were


def test_nothing_recorded_is_unobserved() -> None:
    """The message says what is missing."""
    finding = judged([Count(1, 0, 0)], _FAULT, {1})
    assert (finding.status, finding.message) == ("unobserved", "No call was recorded.")


@pytest.mark.parametrize(
    ("shares", "chosen", "status", "message"),
    [
        (
            (0.02, 0.03, 0.02, 0.4, 0.3), {4, 5}, "unhealthy",
            "140 of the 400 trajectories with a call in steps 4–5 (35%) have a broken one. "
            "Earlier, it was 2.3%.",
        ),
        (
            (0.02, 0.03, 0.02, 0.4, 0.3), {5}, "unhealthy",
            "60 of the 200 trajectories with a call in step 5 (30%) have a broken one. "
            "Earlier, it was 2.3%.",
        ),
        (
            (0.02, 0.03, 0.005, 0.4), {3}, "healthy",
            "1 of the 200 trajectories with a call (0.5%) has a broken one: below the limit of 50%, and no "
            "step is clearly above the steps before it.",
        ),
        (
            (0.02, 0.03, 0.02, 0.4), {2}, "healthy",
            "6 of the 200 trajectories with a call (3.0%) have a broken one: below the limit of 50%.",
        ),
        ((0, 0), {1, 2}, "healthy", "None of the 400 trajectories with a call has a broken one."),
        ((0, 0), {3}, "unobserved", "No call was recorded."),
    ],
)  # fmt: skip
def test_chosen_steps_are_compared_with_all_before(
    shares: tuple[float, ...], chosen: set[int | None], status: str, message: str
) -> None:
    """The message has the figures of the chosen steps, and their denominator."""
    finding = judged(steps(*shares), _FAULT, chosen)
    assert (finding.status, finding.message) == (status, message)


def test_share_at_the_limit_of_too_few_trajectories_is_unobserved() -> None:
    """The finding names them; a healthy finding on another part of the run does not hide it."""
    few = judged([Count(1, 1, 1, ("t",))], _FAULT, {1})
    assert few == Finding(
        "unobserved",
        "The only trajectory with a call (100%) has a broken one: too few to tell from chance.",
        evidence=("t",),
    )
    assert of_several(Finding("healthy", "Good."), few) == few
    assert judged([Count(1, 0, 1)], _FAULT, {1}).message == (
        "No trajectory with a call has a broken one: there is only one."
    )


@pytest.mark.parametrize("share", [0.01, 0.05, 0.15, 0.3])
def test_siblings_that_fail_together_raise_no_alarm(share: float) -> None:
    """Prompts differ in difficulty, so failures come in groups of eight."""
    draw = random.Random(3)
    for _ in range(60):
        counts = []
        for step in range(1, 41):
            groups = [draw.betavariate(3 * share, 3 * (1 - share)) for _ in range(16)]
            counts.append(Count(step, sum(draw.random() < part for part in groups for _ in range(8)), 128))
        assert unhealthy(counts) == []


def test_steps_in_words() -> None:
    """Neighbours are a range."""
    assert steps_in_words([1, 2, 3, 5, 8, 9]) == "steps 1–3, 5, 8–9"
    assert steps_in_words([4]) == "step 4"
    assert steps_in_words([None, 2, 1]) == "steps 1–2 and those without a number"
    assert steps_in_words([None]) == "steps without a number"


def in_groups(*bad: int, of: int = 8, siblings: int = 4) -> list[Count]:
    """Return steps in which whole groups have it."""
    return [
        Count(step, number * siblings, of * siblings, (f"{step}/0/0",), number, of)
        for step, number in enumerate(bad, 1)
    ]


def test_rise_that_small_steps_show_together_is_a_fault() -> None:
    """Half of eight groups may be chance in one step, and not in three of six."""
    counts = in_groups(0, 0, 0, 2, 3, 3)
    assert unhealthy(counts) == [4, 5, 6]
    assert excess(counts, LIMITS, {count.step for count in counts}).usual == 0
    assert unhealthy(counts[:4]) == []


def test_rise_of_small_steps_needs_known_groups() -> None:
    """Without them, nobody knows how many trajectories failed for one reason."""
    assert unhealthy([Count(each.step, each.bad, each.of) for each in in_groups(0, 0, 0, 2, 3, 3)]) == []


def test_few_groups_that_fail_as_a_whole_are_no_rise() -> None:
    """Twelve of 96 trajectories are many, three of 24 groups are not."""
    assert unhealthy(in_groups(0, 0, 0, 1, 1, 1)) == []


def test_steps_after_a_small_rise_are_healthy_again() -> None:
    """A rise of several steps ends as one of a single step does."""
    assert unhealthy(in_groups(0, 0, 0, 3, 3, 3, 0, 0)) == [4, 5, 6]


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1, 0.2, 0.3, 0.5])
def test_short_random_runs_raise_hardly_more_alarms_with_groups(share: float) -> None:
    """At most one in 100 short runs, if each group fails or succeeds as a whole: the worst case."""
    draw, alarms, number = random.Random(4), 0, 1000
    for _ in range(number):
        groups = draw.choice([4, 8, 16, 32])
        bad = [sum(draw.random() < share for _ in range(groups)) for _ in range(draw.randint(3, 12))]
        counts = in_groups(*bad, of=groups, siblings=draw.choice([4, 8]))
        alone = unhealthy([Count(each.step, each.bad, each.of) for each in counts])
        alarms += bool(unhealthy(counts)) and not alone
    assert alarms <= number / 100
