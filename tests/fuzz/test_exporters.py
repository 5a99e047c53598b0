"""A span of any content: each exporter encodes it as its backend accepts it."""

import json
import subprocess
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otel_rollout.exporting.batching import halved
from otel_rollout.exporting.projects import by_project
from otel_rollout.otlp import sdk
from otel_rollout_mlflow import mapping as mlflow_mapping
from otel_rollout_mlflow import scores as mlflow_scores
from otel_rollout_mlflow import writer as mlflow_writer
from otel_rollout_otlp.exporter import json_of_spans, protobuf_of_spans
from otel_rollout_weave import calls as weave_requests
from otel_rollout_weave import mapping as weave_mapping
from otel_rollout_weave import scores as weave_scores
from tests.fuzz.bounds import examples
from tests.fuzz.spans import spans
from tests.spool_reader import parse_line

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
ROOT = Path(__file__).parent.parent.parent
projects = st.none() | st.text(max_size=4)


def strict(encoded: bytes | str):
    """Parse strict JSON, without NaN, with Python's own parser."""
    return json.loads(encoded, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def read_back(request: bytes) -> ExportTraceServiceRequest:
    """Parse a request."""
    return ExportTraceServiceRequest.FromString(request)


def spans_in(request: ExportTraceServiceRequest | TracesData) -> list:
    return [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]


@examples(30)
@given(batch=spans, max_bytes=st.sampled_from([1, 500, 1 << 20]))
def test_otlp_exporter_encodes_every_span(batch, max_bytes):
    """Protobuf reads back what it wrote, and each span is there once.

    Google's own parser takes the JSON.
    """
    requests = halved(batch, protobuf_of_spans, len, max_bytes)
    assert sum(len(spans_in(ExportTraceServiceRequest.FromString(body))) for body in requests) == len(batch)
    requests = halved(sdk.spans_of(batch), json_of_spans, len, max_bytes)
    assert sum(len(spans_in(parse_line(orjson.dumps(strict(body))))) for body in requests) == len(batch)


@examples(30)
@given(batch=spans, last=projects, max_bytes=st.sampled_from([1, 500, 1 << 20]))
def test_mlflow_exporter_encodes_every_span(batch, last, max_bytes):
    """MLflow's own entities can be made of each request, and scores are JSON."""
    batch = sdk.spans_of(batch)
    from mlflow.entities.span import Span
    from mlflow.tracing.utils import TraceJSONEncoder

    found = 0
    for project, group in by_project(batch, last).items():
        orjson.dumps(project)
        mapped = [mlflow_mapping.to_mlflow(span) for span in group]
        for request in mlflow_writer.requests_of(mapped, max_bytes):
            for of_resource in read_back(request).resource_spans:
                for scope in of_resource.scope_spans:
                    for span in scope.spans:
                        made = Span.from_otel_proto(span, resource=of_resource.resource)
                        stored = json.loads(json.dumps(made.to_dict(), cls=TraceJSONEncoder))
                        assert Span.from_dict(stored).name == made.name
                        found += 1
        for score in [score for span in group for score in mlflow_scores.feedback_of(span)]:
            json.dumps(
                {"name": score.name, "value": score.value, "why": score.comment}, allow_nan=False
            ).encode()
            assert score.name
    for span in batch:
        (request,) = mlflow_writer.requests_of([mlflow_mapping.placeholder(span)], max_bytes)
        assert spans_in(read_back(request))
    assert found == len(batch)


def weave_calls(batch, last) -> tuple[list[bytes], list[bytes], list[dict]]:
    calls, markers, feedback = [], [], []
    batch = sdk.spans_of(batch)
    for project, group in by_project(batch, last).items():
        mapped = [weave_mapping.to_call(span, "entity/project", None) for span in group]
        assert sum(map(len, weave_requests.requests_of(mapped, 500))) == len(group)
        calls += [encoded for call in mapped for encoded in (call.encoded, call.stand_in())]
        markers += [weave_mapping.to_marker(span, f"entity/{project}", "e/p/r") for span in group]
        feedback += [s.to_weave("entity/project") for span in group for s in weave_scores.feedback_of(span)]
    return calls, markers, feedback


def test_weave_exporter_encodes_every_span():
    """Weave's own models accept each call, marker and score as strict JSON."""
    validated = []

    @examples(30)
    @given(batch=spans, last=projects)
    def check(batch, last):
        calls, markers, feedback = weave_calls(batch, last)
        for kind, entries in (("call", calls), ("start", markers), ("feedback", map(orjson.dumps, feedback))):
            for entry in entries:
                strict(entry)
                validated.append(orjson.dumps({"kind": kind, "body": orjson.Fragment(entry)}))

    check()
    ran = subprocess.run(
        [ROOT / ".venv-weave/bin/python", Path(__file__).parent / "weave_models.py"],
        input=b"\n".join(validated),
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout.decode()) == (0, f"{len(validated)} valid\n"), ran.stderr.decode()
