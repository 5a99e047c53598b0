"""Compare what tail sampling reads in the lines of a trace with what the views say of them."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.outcome import TrajectoryOutcome
from tests.contracts.test_facts import FEWER, SECOND, START, encoded, queried

OUTER = {"rollout.step": 1, "rollout.sample_index": "7", "rollout.rollout_n": 0, "rollout.validate": False}
INNER = {**OUTER, "rollout.sample_index": "inner"}
BEGINNING = {**INNER, "rollout.begins_trajectory": True}
origins = st.sampled_from([semconv.ORIGIN_PROCESS, semconv.ORIGIN_OUTSIDE])
ROOT, PART, TOOL, TOOL_OF_PART = (f"{number:016x}" for number in range(1, 5))
AROUND = {
    ROOT: ("", "AGENT", OUTER),
    PART: (ROOT, "AGENT", BEGINNING),
    TOOL: (ROOT, "TOOL", OUTER),
    TOOL_OF_PART: (PART, "TOOL", INNER),
}
"""Span → its parent, kind and identity."""


def line(span_id: str, parent: str, start: int, attributes: dict[str, Any], trace_id: str = "a" * 32) -> str:
    """Return a line of one span that takes a second."""
    span = {
        "traceId": trace_id,
        "spanId": span_id,
        "parentSpanId": parent,
        "name": "named",
        "startTimeUnixNano": str(START + start),
        "endTimeUnixNano": str(START + start + SECOND),
        "attributes": [{"key": key, "value": encoded(value)} for key, value in attributes.items()],
    }
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [span]}]}]})


@st.composite
def lines(draw: st.DrawFn, trace_id: str) -> list[str]:
    """Return the lines of a trajectory with another one inside, and scores around each of their spans."""
    repeated = {"rollout.score.reward": 0.25, "rollout.score_time.reward": START + draw(st.integers(0, 9))}
    found = [
        line(span_id, parent, 0, {**identity, "openinference.span.kind": kind, **(
            repeated if span_id in draw(st.sets(st.sampled_from([ROOT, PART]))) else {}
        )}, trace_id)
        for span_id, (parent, kind, identity) in AROUND.items()
    ]  # fmt: skip
    times = draw(st.lists(st.integers(0, 9), max_size=6, unique=True))
    for number, time in enumerate(times, start=16):
        around = draw(st.sampled_from(list(AROUND)))
        has_identity = draw(st.booleans()) or around in (TOOL, TOOL_OF_PART)  # others are given by their id
        given_here = {
            **(AROUND[around][2] if has_identity else {}),
            **evaluations.attributes_of("reward", number / 100, None, draw(origins)),
        }
        found.append(line(f"{number:016x}", around, time, given_here, trace_id))
    return draw(st.permutations(found))


@FEWER
@given(st.tuples(*(lines(f"{number:032x}") for number in range(1, 5))))
def test_reward_is_that_of_the_trajectory_and_of_no_other_inside_it(traces: tuple[list[str], ...]) -> None:
    """Lines come in any order; a score around a sub-trajectory's span is the sub-trajectory's."""
    rows = queried(
        "\n".join(itertools.chain(*traces)), "SELECT reward, state FROM trajectories ORDER BY trace_id"
    )
    for recorded, row in zip(traces, rows, strict=True):
        outcome = TrajectoryOutcome("reward")
        for each in recorded:
            outcome.add(each.encode())
        assert (outcome.score, outcome.has_ended) == (row["reward"], row["state"] == "ok")


def test_score_inside_a_sub_trajectory_from_another_process_is_not_the_outers() -> None:
    """Where no root repeats it, the span around the score tells whose it is."""
    given_there = {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": 0.5,
        "rollout.score.origin": "process",
    }
    spans = [
        line(ROOT, "", 0, {**OUTER, "openinference.span.kind": "AGENT"}),
        line(PART, ROOT, 0, {**BEGINNING, "openinference.span.kind": "AGENT"}),
        line("f" * 16, PART, 5, given_there),
    ]  # fmt: skip
    for order in itertools.permutations(spans):
        outcome = TrajectoryOutcome("reward")
        for each in order:
            outcome.add(each.encode())
        assert not outcome.is_scored
