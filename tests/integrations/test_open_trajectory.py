"""Open trajectories whose blocks are left in any order, as those of generators are."""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.context import Context, get_current

import otel_rollout
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.record.recording.entered import ENTERED
from tests.spool_reader import Recorded

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@otel_rollout.rollout_trace_op
def call_tool(number: int) -> int:
    """Return the number of the rollout that calls the tool."""
    return number


def opened(number: int) -> OpenTrajectory:
    """Start a trajectory whose sample index is a number."""
    return OpenTrajectory(otel_rollout.rollout_trace_attr(number, 1, 0))


def staying(trajectory: OpenTrajectory, advances: int) -> Iterator[None]:
    """Yield inside a trajectory, which the page forbids."""
    with trajectory.inside():
        for _ in range(advances):
            yield
    trajectory.end()


def advance_in_turns(generators: list[Iterator[Any]]) -> None:
    """Advance each generator once, and again, until all have ended."""
    while generators:
        for generator in list(generators):
            if next(generator, generators) is generators:
                generators.remove(generator)


def present() -> tuple[Context, Any]:
    """Return what belongs to the trajectory that is current."""
    return get_current(), ENTERED.get()


@pytest.mark.parametrize("advances", [(2, 2, 2), (3, 2, 1), (1, 3, 2)])
def test_generators_that_yield_inside_leave_the_callers_context(
    recorded: Callable[[], list[Recorded]], caplog: pytest.LogCaptureFixture, advances: tuple[int, ...]
) -> None:
    """In whatever order they end, also around a trajectory that stays open."""
    around = opened(9)
    with around.inside():
        outside = present()
        advance_in_turns([staying(opened(i), count) for i, count in enumerate(advances)])
        assert present() == outside
        call_tool(9)
    around.end()
    tool, root = recorded()[-2:]
    assert (tool.span.parent_span_id, root.attributes["rollout.sample_index"]) == (root.span.span_id, 9)
    assert caplog.records == []


def test_generator_that_is_closed_inside_another_trajectory_leaves_it_current(
    recorded: Callable[[], list[Recorded]], caplog: pytest.LogCaptureFixture
) -> None:
    """The garbage collector closes generators anywhere."""
    abandoned = staying(opened(1), 2)
    outside = present()
    next(abandoned)
    other = opened(2)
    with other.inside():
        inside = present()
        del abandoned
        gc.collect()
        assert present() == inside
        call_tool(2)
    assert present() == outside
    other.end()
    tool, root = recorded()[-2:]
    assert (tool.span.parent_span_id, root.attributes["rollout.sample_index"]) == (root.span.span_id, 2)
    assert caplog.records == []


def test_generator_rollouts_of_the_page_keep_their_tools_apart(
    recorded: Callable[[], list[Recorded]],
) -> None:
    """The page's wrapper, with rollouts that are advanced in turns."""
    (code,) = re.findall(r"```python\n(def tracing\(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"functools": functools, "rollout_trace_attr": otel_rollout.rollout_trace_attr}
    exec(code, names)

    def rollout(trainer: Any, position: int) -> Iterator[int]:
        for _ in range(2):
            yield call_tool(position)

    traced, trainer, outside = names["tracing"](rollout), SimpleNamespace(group_size=2, step=5), present()
    advance_in_turns([traced(trainer, position) for position in range(4)])
    assert present() == outside
    spans = recorded()
    positions = {}
    for root in spans:
        if root.name == "rollout_trace":
            place = [root.attributes[f"rollout.{key}"] for key in ("step", "sample_index", "rollout_n")]
            positions[root.span.span_id] = place
    tools = [(span.output, positions[span.span.parent_span_id]) for span in spans if span.name == "call_tool"]
    assert tools == [(position, [5, *divmod(position, 2)]) for position in (0, 1, 2, 3)] * 2


def test_score_after_the_end_is_of_the_trajectory_that_has_ended(
    recorded: Callable[[], list[Recorded]],
) -> None:
    """A trainer may score late, inside another trajectory."""
    first, second = opened(1), opened(2)
    first.end()
    with second.inside():
        first.score("reward", 0.5)
    second.end()
    roots = {
        span.attributes["rollout.sample_index"]: span.span
        for span in recorded()
        if span.name == "rollout_trace"
    }
    (scored,) = (span.span for span in recorded() if "gen_ai.evaluation.name" in span.attributes)
    assert (scored.trace_id, scored.parent_span_id) == (roots[1].trace_id, roots[1].span_id)
