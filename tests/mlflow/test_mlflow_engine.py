"""The spans of an inference engine in MLflow: no model calls of their own, and no tokens twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_rollout.base import semconv
from otel_rollout.otlp.engine_phases import PHASES
from tests.engine_spans import Call, spans_in, trajectory
from tests.mlflow_server import stored
from tests.sdk_spans import deliver


def trace_of(project: str) -> int:
    """Return a trace id of the project's own."""
    return int(project[-12:], 16)


NEW_NAMES = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


@pytest.mark.parametrize("names", [Call().tokens, NEW_NAMES])
@pytest.mark.parametrize("engine_first", [False, True])
def test_tokens_of_a_trace_are_those_of_its_model_calls(
    uri: str, project: str, exporter_for: Any, names: Any, engine_first: bool
) -> None:
    """The engine's span repeats the counts of the call above it, in one batch or in an earlier one."""
    spans = spans_in(trajectory([Call(tokens=names), Call(requests=0)], project, trace=trace_of(project)))
    of_engine = [span for span in spans if span.name in (semconv.ENGINE_REQUEST, *PHASES)]
    assert len(of_engine) == 4
    exporter = exporter_for(uri)
    if engine_first:
        deliver(exporter, of_engine)
        spans = [span for span in spans if span not in of_engine]

    deliver(exporter, spans)

    (trace,) = stored(uri, project)
    usage = json.loads(trace.info.trace_metadata["mlflow.trace.tokenUsage"])
    assert (usage["input_tokens"], usage["output_tokens"]) == (466, 92)


def test_engine_phases_are_spans_below_their_request(uri: str, project: str, exporter_for: Any) -> None:
    """Neither the request nor its phases are model calls; they keep their times."""
    deliver(exporter_for(uri), spans_in(trajectory([Call()], project, trace=trace_of(project))))

    (trace,) = stored(uri, project)
    by_name = {span.name: span for span in trace.data.spans}
    request = by_name[semconv.ENGINE_REQUEST]
    assert request.parent_id == by_name["generate"].span_id
    assert [by_name[name].parent_id for name in PHASES] == [request.span_id] * 3
    assert {by_name[name].span_type for name in (semconv.ENGINE_REQUEST, *PHASES)} <= {None, "UNKNOWN"}
    assert by_name["generate"].span_type == "LLM"
    times = [by_name[name].end_time_ns - by_name[name].start_time_ns for name in PHASES]
    assert times == [120_000_000, 80_000_000, 1_200_000_000]


def test_spans_in_a_circle_do_not_stop_delivery(uri: str, project: str, exporter_for: Any) -> None:
    """Another program's span may have the call's own id and be below the call's child."""
    spans = spans_in(trajectory([Call()], project, trace=trace_of(project)))
    (request,) = [span for span in spans if span.name == semconv.ENGINE_REQUEST]
    (call,) = [span for span in spans if span.span_id == request.parent_id]
    circle = call.copy(name="circle", parent_id=request.span_id)
    deliver(exporter_for(uri), [circle, *spans])
    (trace,) = stored(uri, project)
    names = {span.name for span in trace.data.spans}
    assert call.name in names
    assert "circle" not in names
