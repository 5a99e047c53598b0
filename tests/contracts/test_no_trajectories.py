"""A trace whose ``rollout.validate`` is missing, or no boolean, is no trajectory, whoever is asked."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from otel_rollout.account.span_metrics import SpanMetrics
from otel_rollout.base import semconv
from otel_rollout.look.conversation.summary import path_of
from otel_rollout.look.sources.mlflow_source import MlflowSource
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout.otlp.json_line import spans_of
from otel_rollout.otlp.outcome import TrajectoryOutcome
from otel_rollout.otlp.scan import parsed_step_of
from otel_rollout_mlflow.tags import trace_tags
from tests.contracts.asked import _Meter
from tests.contracts.test_facts import START, queried
from tests.contracts.test_outcome import PART, ROOT, TOOL, line
from tests.viewer.reading import conversation_of

ASKED = {"input.value": json.dumps({"messages": [{"role": "user", "content": "3+4?"}]})}
ASKED |= {"input.mime_type": "application/json", "output.value": "7"}
pytestmark = pytest.mark.parametrize("validate", [None, "False", "true", 0])


def identity(validate: object) -> dict[str, Any]:
    """Return a trajectory's identity, with what is in the place of the boolean; None for nothing."""
    known = {"rollout.step": 1, "rollout.sample_index": "7", "rollout.rollout_n": 0}
    return known if validate is None else {**known, "rollout.validate": validate}


def lines(validate: object) -> list[str]:
    """Return an agent, an agent inside it, and its model call with a score."""
    named = identity(validate)
    scored = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 1.0}
    return [
        line(ROOT, "", 0, {**named, "openinference.span.kind": "AGENT"}),
        line(PART, ROOT, 1, {**named, "openinference.span.kind": "AGENT"}),
        line(TOOL, PART, 2, {**named, **ASKED, "openinference.span.kind": "LLM"}),
        line("f" * 16, PART, 3, {**named, **scored, "openinference.span.kind": "EVALUATOR"}),
    ]


def test_views_have_no_such_trajectory(validate: object) -> None:
    """The views decide: without the boolean, no root."""
    assert queried("\n".join(lines(validate)), "SELECT * FROM trajectories") == []


def test_show_of_its_trace_says_of_no_turn_that_it_is_of_a_trajectory_inside(validate: object) -> None:
    """Its turns are those of a trace without a name."""
    shown = conversation_of([span for each in lines(validate) for span in spans_of(each.encode())])
    assert [turn.sub_trajectory for turn in shown.turns] == ["", ""]
    assert path_of(identity(validate)) == ""


def test_show_counts_its_run_as_one_without_trajectories(validate: object, tmp_path: Path) -> None:
    """A run that has such traces alone is no newer run that lacks a trajectory."""
    recorded = tmp_path / "lines.jsonl"
    recorded.write_text("\n".join(lines(validate)))
    assert [run.may_have_trajectories for run in SpoolSource(recorded)._runs] == [False]


def test_tail_sampling_takes_an_agent_inside_for_no_trajectory(validate: object) -> None:
    """So a score that is given there is the outer one's."""
    outcome = TrajectoryOutcome("reward")
    for each in lines(validate):
        outcome.add(each.encode())
    assert outcome.score == 1.0


def test_mlflow_gets_no_tag_by_which_trajectories_are_searched(validate: object) -> None:
    """`tags.validate = 'False'` finds trajectories alone; the attribute stays on the root span."""
    assert trace_tags(identity(validate)) == {"step": "1", "sample_index": "7", "rollout_n": "0"}


def test_status_counts_its_step_as_training(validate: object) -> None:
    """Only `true` is a validation, however the line is read."""
    assert not parsed_step_of(lines(validate)[0].encode()).validate


def test_metrics_measure_no_such_trajectory(validate: object) -> None:
    """Its model call is measured alone."""
    meter = _Meter()
    with patch("otel_rollout.account.span_metrics.metrics.get_meter", lambda *_: meter):
        SpanMetrics().observe("".join(f"{each}\n" for each in reversed(lines(validate))).encode())
    names = {name for name, *_ in meter.measured}
    assert "gen_ai.client.operation.duration" in names
    assert not any(name.startswith("rollout.trajectory.") for name in names)


def test_list_of_mlflow_has_no_such_trace(validate: object) -> None:
    """The list reads and counts the newest run's trajectories alone."""
    recorded = {"a" * 32: identity(False), "b" * 32: identity(validate)}
    listed = [
        {"trace_id": f"tr-{id_}", "tags": {**trace_tags(named), semconv.RUN_ID: "run"}, "start_ns": START}
        for id_, named in recorded.items()
    ]

    def line_of(described: dict[str, Any], **_: object) -> bytes:
        id_ = described["trace_id"].removeprefix("tr-")
        return line(ROOT, "", 0, recorded[id_], id_).encode()

    traces = SimpleNamespace(location="", find=lambda *_: iter(listed), line_of=line_of)
    with patch("otel_rollout.look.sources.mlflow_source.offered", return_value=lambda *_: traces):
        ((spans, _),) = MlflowSource(None, None).matching(None)
        assert [span.trace_id for span in spans] == ["a" * 32]
