"""Smallest recordings of which ways of asking told something else than docs/.

A limit that stays is a strict xfail with its reason; ``tests.contracts.allowed`` has it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.contracts import asked
from tests.contracts.account import Recording
from tests.contracts.figures_told import of_group, of_metrics, of_tail_sampling
from tests.contracts.lists_told import of_list, of_pages, of_show
from tests.contracts.made_spans import Identity, Made, Score

OUTER = Identity(1, 7, 0)
INNER = replace(OUTER, sample="inner")
_REMOTE = 0xFF00


def span(number: int, inside: int | None, kind: str, begin: int, end: int, **fields: Any) -> Made:
    """Return a span of trajectory 1/7/0, or of the one that ``identity`` names."""
    return Made(**{"trace": 1, "identity": OUTER, **fields}, span=number, inside=inside, kind=kind,
                begin=begin, end=end)  # fmt: skip


def root(inside: int | None = None, **fields: Any) -> Made:
    """Return the span of the trajectory."""
    return span(1, inside, "AGENT", 0, 100, name="agent_loop", **fields)


def score(number: int, inside: int, at: int, value: float, origin: str = "", **fields: Any) -> Made:
    """Return a score of the name ``reward``."""
    given = Score("reward", value, "", origin)
    return span(number, inside, "EVALUATOR", at, at, name="score", evaluation=given, **fields)


def inner(begin: int, end: int) -> Made:
    """Return the span of a trajectory inside, with a name of its own."""
    return span(2, 1, "AGENT", begin, end, identity=INNER, name="inner_loop")


def differences(way: Any, *spans: Made) -> list[str]:
    """Return what a way of asking tells differently of spans in a table."""
    recording = Recording(list(spans))
    with asked.places_of(spans) as places:
        return [str(told) for told in way(places.table, recording)]


def _limit(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)


def test_running_trajectory_has_its_own_name() -> None:
    """Not that of the trajectory inside it that began before its own first ended call."""
    assert differences(of_list, inner(10, 50), span(3, 1, "LLM", 60, 70)) == []


@_limit(
    "a score from another process below an operation belongs to the identity that it names, and both have it"
)
def test_score_from_another_process_in_an_inner_trajectory_is_its_own() -> None:
    """Also if it has the identity of the outer one, and is given in a call of a tool."""
    agent, tool = replace(inner(10, 50), identity=OUTER), span(3, 2, "TOOL", 20, 30, name="search")
    assert differences(of_list, root(), agent, tool, score(4, 3, 60, 0.5, "process")) == []


def test_score_that_a_trajectory_in_a_foreign_trace_repeats_counts() -> None:
    """The span of the trajectory repeats scores, wherever the trajectory is."""
    assert differences(of_list, root(_REMOTE, repeated=((Score("reward", 0.5), 50),))) == []


def test_trajectory_in_a_foreign_trace_is_that_around_the_inner_one() -> None:
    """Also if the clock of the inner one's machine is behind."""
    assert differences(of_list, root(_REMOTE), inner(-1, 50), score(3, 1, 60, 0.5)) == []


@pytest.mark.parametrize("way", [of_group, of_show])
def test_call_of_a_tool_inside_a_model_call_counts(way: Any) -> None:
    """As in `list`, `steps` and `report`: a model call may call tools on its server."""
    assert differences(way, root(), span(2, 1, "LLM", 0, 50), span(3, 2, "TOOL", 10, 20, name="search")) == []


@pytest.mark.parametrize("way", [of_group, of_show])
def test_counts_of_other_spans_inside_a_model_call_do_not_count(way: Any) -> None:
    """As in `list`, `steps` and `report`: a count that a call lacks is that of the calls inside it."""
    chain = span(3, 2, "CHAIN", 10, 20, tokens=(8, 3))
    assert differences(way, root(), span(2, 1, "LLM", 0, 50), chain) == []


@pytest.mark.parametrize("value", ["good", False])
def test_page_of_trajectories_shows_each_reward(value: Any) -> None:
    """A text, a bool or NaN as `show` shows it."""
    assert differences(of_pages, root(), score(2, 1, 50, value)) == []


def test_health_does_not_say_that_all_scores_have_a_trajectory() -> None:
    """A score of nobody may wait while the step runs; but it has none yet."""
    identity = replace(OUTER, rollout=9)
    lost = score(1, 0, 150, 0.5, "identity", identity=identity, trace=2)
    running = span(2, 1, "LLM", 200, 210, trace=3, identity=replace(OUTER, rollout=1))
    with asked.places_of([root(), replace(lost, inside=None), running]) as places:
        (check,) = asked.parsed(
            places.table, "health", "--only", "scores_unresolved", "--json", codes=(0, 1)
        )["checks"]
    assert check["message"] != "All 1 scores by identity belong to a trajectory."


def test_health_does_not_say_that_no_trajectory_has_ended() -> None:
    """One of the step has ended without an error, and another one runs."""
    running = span(2, 1, "LLM", 200, 210, trace=3, identity=replace(OUTER, rollout=1))
    with asked.places_of([root(), score(2, 1, 50, 0.5), running]) as places:
        (check,) = asked.parsed(places.table, "health", "--only", "reward_missing", "--json")["checks"]
    assert check["message"] != "No trajectory has ended without an error."


def test_span_that_ends_before_its_begin_lasts_no_time() -> None:
    """A clock was set back; metrics and phases take no time for it."""
    with asked.places_of([replace(root(), begin=100, end=40)]) as places:
        (row,) = asked.rows(places.table, "list")
    assert row["seconds"] == 0


NAN = score(2, 1, 50, float("nan"))


def test_group_does_not_say_that_no_reward_was_recorded() -> None:
    """A reward that is NaN was recorded; `show` tells it."""
    with asked.places_of([root(), NAN]) as places:
        assert "none recorded" not in asked.printed(places.table, "group", "1/7")


def test_report_tells_how_many_rewards_are_odd() -> None:
    """On the terminal as in JSON, where they are `odd` and not `missing`."""
    with asked.places_of([root(), NAN]) as places:
        assert re.search("nan|odd|infinite", asked.printed(places.table, "report").lower())


def test_report_and_health_agree_on_which_rewards_are_missing() -> None:
    """Three of eight are NaN."""
    spans: list[Made] = []
    for number, value in enumerate([float("nan")] * 3 + [0.5] * 5, start=1):
        of: dict[str, Any] = {"trace": number, "identity": replace(OUTER, rollout=number)}
        spans += [root(**of), score(2, 1, 50, value, **of)]
    with asked.places_of(spans) as places:
        (step,) = asked.parsed(places.table, "report", "--json")["training"]
        health = ("health", "--only", "reward_missing", "--json")
        (check,) = asked.parsed(places.table, *health, codes=(0, 1))["checks"]
    assert step["reward"]["odd"] == 3
    assert (step["reward"]["missing"] > 0) == ("have no reward" in check["message"])


def metrics_of(*spans: Made) -> Iterator[str]:
    """Return what metrics tell differently."""
    (one,) = Recording(list(spans)).trajectories
    return map(str, of_metrics(one))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_metrics_add_no_reward_that_is_no_number(value: float) -> None:
    """A sum with NaN in it would stay NaN."""
    assert list(metrics_of(root(), score(2, 1, 50, value))) == []


@_limit("a call is measured when it ends, and a histogram takes nothing back")
def test_metrics_have_the_tokens_of_the_outer_call() -> None:
    """The outer call's counts are its own; a count that the inner call lacks is not lost."""
    client = span(2, 1, "LLM", 0, 50, tokens=(10, 5))
    assert list(metrics_of(root(), client, span(3, 2, "LLM", 10, 40, tokens=(None, 4)))) == []


@_limit("a call is measured when it ends, and a histogram takes nothing back")
def test_metrics_count_a_call_with_two_calls_inside_once() -> None:
    """A client that tries again makes one model call, as in the views."""
    inside = (span(3, 2, "LLM", 0, 10), span(4, 2, "LLM", 20, 40, tokens=(1, 1)))
    assert list(metrics_of(root(), span(2, 1, "LLM", 0, 50), *inside)) == []


@_limit("a process cannot tell it from a trajectory inside another one")
def test_metrics_have_a_trajectory_in_a_foreign_trace() -> None:
    """It has a duration and turns, as in `list`."""
    assert list(metrics_of(root(_REMOTE))) == []


def outcome_of(*spans: Made) -> list[str]:
    """Return what tail sampling takes differently."""
    recording = Recording(list(spans))
    return [str(told) for one in recording.trajectories for told in of_tail_sampling(one, recording)]


@_limit("its line may come before that of a trajectory around it, so its group waits for the deadline")
def test_trajectory_in_a_foreign_trace_has_ended_for_tail_sampling() -> None:
    """Otherwise its group waits until the deadline."""
    assert outcome_of(root(_REMOTE)) == []


def test_tail_sampling_leaves_scores_to_the_inner_trajectory_that_another_process_scored() -> None:
    """A worker that runs the inner trajectory scores it there."""
    assert outcome_of(root(), inner(0, 50), score(3, 2, 50, 0.5, "process", identity=INNER)) == []


def test_tail_sampling_takes_one_of_two_scores_of_one_time_whatever_their_order() -> None:
    """The order of delivery does not matter."""
    scores = [score(2, 1, 50, 0.5), score(3, 1, 50, 1.0)]
    assert outcome_of(*scores[::-1], root()) == outcome_of(*scores, root()) == []
