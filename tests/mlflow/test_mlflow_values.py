"""Inputs and outputs of every type and size, read back by MLflow's own client."""

from __future__ import annotations

import json

import pytest
from mlflow_support import not_in_3_14, stored
from opentelemetry import trace as otel
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout_mlflow import mapping
from otel_rollout_mlflow.writer import requests_of
from tests.sdk_spans import JSON, decoded, deliver


def test_too_long_names_are_cut_and_long_inputs_kept(uri, project, rollouts, exporter_for):
    """A session id and names beyond MLflow's limits are cut.

    A megabyte of input is whole.
    """
    big = "界" * 400_000
    with rollouts.span(
        "n" * 5000,
        "AGENT",
        session__id="s" * 1000,
        input__value=json.dumps({"text": big}),
        rollout__note="t" * 9000,
        rollout__score__bad=float("nan"),
        **JSON,
    ):
        pass

    deliver(exporter_for(uri), rollouts.ended())

    [trace] = stored(uri, project)
    assert trace.data.spans[0].inputs == {"text": big}
    assert trace.info.trace_metadata["mlflow.trace.session"] == "s" * 250


@not_in_3_14
def test_integer_beyond_64_bits_is_stored_as_text(uri, project, rollouts, exporter_for):
    """MLflow's server would show neither its trace nor any other."""
    seeds = f'{{"seeds": [{2**64 - 1}, {-(2**63) - 1}, {2**63 - 1}], "text": "{2**70}", "cut": "\\ud83d"}}'
    with rollouts.span("op", input__value=seeds, input__mime_type="application/json"):
        pass

    deliver(exporter_for(uri), rollouts.ended())

    [trace] = stored(uri, project)
    inputs = trace.data.spans[0].inputs
    assert inputs["seeds"] == [str(2**64 - 1), str(-(2**63) - 1), 2**63 - 1]
    assert (inputs["text"], inputs["cut"]) == (str(2**70), "?")


def test_number_that_is_no_count_of_tokens_hides_no_trace(uri, project, rollouts, exporter_for):
    """Of a trace whose tokens add up beyond 64 bits, MLflow would show neither it nor any other."""
    for count in (2**63 - 1, 2**40):
        usage = {"gen_ai__usage__input_tokens": 2**40, "gen_ai__usage__output_tokens": count}
        with rollouts.span("Agent.run", "AGENT"), rollouts.span("generate", "LLM", **usage):
            pass
    deliver(exporter_for(uri), rollouts.ended())

    totals = [trace.info.token_usage["total_tokens"] for trace in stored(uri, project)]
    assert sorted(totals) == [2**40, 2**41]


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 10**40])
@pytest.mark.parametrize("before", range(40))
def test_integer_beyond_64_bits_is_found_at_every_position(before, number):
    """Only a number that MLflow cannot hold becomes text."""
    given = json.dumps(["a" * before, number, "a"])
    attributes = {"input.value": given, "input.mime_type": "application/json"}
    shown = mapping.to_mlflow(
        decoded(ReadableSpan("op", otel.SpanContext(1, 1, False), attributes=attributes))
    )
    kept = number if number < 2**63 else str(number)
    assert json.loads(shown.attributes["mlflow.spanInputs"]) == ["a" * before, kept, "a"]


NUMBERS = ["0", "-0.0", "1.0", "1e22", "-1e22", "1e300", "5e-324", "0.1", str(2**53 + 1), "1e16"]


NUMBERS += [str(2**63 - 1), str(-(2**63)), "true", "false", "null"]


def test_number_keeps_its_type(database_uri, project, rollouts, exporter_for):
    """In any place, 1.0 stays a float and the smallest integer an integer."""
    shapes = ["{}", '{{"held": {}}}', "[{}, {}]"]
    texts = [shape.format(number, number) for number in NUMBERS for shape in shapes]
    for text in texts:
        with rollouts.span(text, "AGENT", input__value=text, output__value=text, **JSON):
            pass
    deliver(exporter_for(database_uri), rollouts.ended())
    shown = {trace.data.spans[0].name: trace.data.spans[0] for trace in stored(database_uri, project)}
    for text in texts:
        assert repr(shown[text].inputs) == repr(shown[text].outputs) == repr(json.loads(text)), text


@pytest.mark.parametrize(
    ("text", "mime_type", "expected"),
    [
        ('{"a": [1, null]}', "application/json", {"a": [1, None]}),
        ('"text"', "application/json", "text"),
        ("0.25", "application/json", 0.25),
        ("true", "application/json", True),
        ("null", "application/json", None),
        ("123456789012345678901234567890", "application/json", "123456789012345678901234567890"),
        ("plain words", "text/plain", "plain words"),
        ('{"looks": "like JSON"}', "text/plain", '{"looks": "like JSON"}'),
        ("42", "text/plain", "42"),
        ("", "text/plain", ""),
    ],
)
def test_value_of_every_type_reads_back_unchanged(
    database_uri, project, rollouts, exporter_for, text, mime_type, expected
):
    """JSON is read back as its value, and text as text."""
    with rollouts.span("op", input__value=text, input__mime_type=mime_type):
        pass

    deliver(exporter_for(database_uri), rollouts.ended())

    [trace] = stored(database_uri, project)
    assert trace.data.spans[0].inputs == expected


def test_requests_are_bounded_in_bytes(rollouts):
    """Spans that do not fit one request go in several, and a larger span goes alone."""
    with rollouts.span("Agent.run", "AGENT"):
        for size in (20_000, 4_000, 4_000, 4_000, 4_000):
            with rollouts.span("generate", "LLM", input__value="x" * size):
                pass

    requests = list(requests_of(list(map(decoded, rollouts.ended())), max_bytes=10_000))

    read = map(ExportTraceServiceRequest.FromString, requests)
    counts = [len(request.resource_spans[0].scope_spans[0].spans) for request in read]
    assert sum(counts) == 6
    assert [counts[at] for at, request in enumerate(requests) if len(request) > 10_000] == [1]
