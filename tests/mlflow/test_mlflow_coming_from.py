"""docs/tutorial.md, `mlflow.trace`: the same searches find the traces of both programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pytest

from tests.coming_from import programs, run, variables

TITLE = "mlflow.trace"
EXPERIMENT = "math-agents"
BOTH = """
import mlflow

from otel_rollout import rollout_trace_attr, rollout_trace_op, score

mlflow.set_experiment("math-agents")


@mlflow.trace(span_type="TOOL")
@rollout_trace_op(kind="TOOL")
def calculate(expression: str) -> int:
    return 6 * 7


@rollout_trace_op(kind="AGENT")
@mlflow.trace(span_type="AGENT")
def agent(question: str) -> str:
    return f"It is {calculate('6 * 7')}."


with rollout_trace_attr(step=2, sample_index=0, rollout_n=0):
    agent("What is 6 * 7?")
    score("reward", 1.0)
mlflow.flush_trace_async_logging()
"""
"""A program in the middle of a move: each function has both decorators, in either order."""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the variables of a new database, and point this process's client there."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    return {"MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}


def found(condition: str | None = None) -> list[Any]:
    """Return the traces of the experiment that meet a condition."""
    experiment = mlflow.get_experiment_by_name(EXPERIMENT)
    traces: list[Any] = mlflow.search_traces(
        locations=[experiment.experiment_id], filter_string=condition, return_type="list"
    )
    return traces


def shape(trace: Any) -> list[tuple[str, str, Any, Any]]:
    """Return name, type, inputs and outputs of a trace's spans below the root."""
    below = [span for span in trace.data.spans if span.parent_id is not None]
    return [(span.name, span.span_type, span.inputs, span.outputs) for span in below]


def test_the_same_searches_find_traces_of_both_programs(tmp_path: Path, target: dict[str, str]) -> None:
    """By step, by reward and by a tool's span; operations look alike."""
    theirs, ours = programs(TITLE)
    run(theirs, tmp_path, **target)
    run(ours, tmp_path, **target, **variables(TITLE))
    for condition in ("tags.step = '1'", "feedback.reward > 0.5", "span.type = 'TOOL'"):
        assert len(found(condition)) == 2, condition
    newest, oldest = found()
    operations = [
        ("agent", "AGENT", {"question": "What is 6 * 7?"}, "It is 42."),
        ("calculate", "TOOL", {"expression": "6 * 7"}, 42),
    ]
    assert shape(oldest) == operations
    assert shape(newest)[:2] == operations
    assert [assessment.value for assessment in newest.info.assessments] == [1.0]


def test_both_decorators_make_two_whole_traces(tmp_path: Path, target: dict[str, str]) -> None:
    """One trace from each side; neither has spans of the other."""
    run(BOTH, tmp_path, **target, **variables(TITLE))
    names = sorted(tuple(sorted(span.name for span in trace.data.spans)) for trace in found())
    assert names == [("agent", "calculate"), ("agent", "calculate", "rollout_trace", "score reward")]
    assert len(found("tags.step = '2'")) == 1
