"""Trajectories as Langfuse 4 wants them: its header, and what it filters by on every span."""

from __future__ import annotations

import gzip
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.collector.support import run_python
from tests.fake_server import serving
from tests.spool_reader import plain_attributes, read_directory
from tests.waiting import wait_for

TYPES = {"rollout_trace": "agent", "turn": "generation", "tool": "tool", "score reward": "evaluator"}


def test_every_span_has_what_langfuse_filters_by(
    collector: Any, environment: dict[str, str], tmp_path: Any
) -> None:
    """Session, tag and identity are on each span of a trajectory, not only on its root."""
    with serving(
        {"/api/public/otel/v1/traces": (200, {"Content-Type": "application/x-protobuf"}, b"")}
    ) as langfuse:
        running = collector(
            *("local.yaml", "to-langfuse.yaml"),
            LANGFUSE_BASE_URL=langfuse.uri,
            LANGFUSE_AUTHORIZATION="Basic cGs6c2s=",
        )
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = running.endpoint
        run_python("tests.collector.programs.nested_turns", environment)
        recorded = read_directory(tmp_path / "spool")
        assert len(recorded) == 24 * 6
        wait_for(lambda: len(spans_in(langfuse.received)) >= len(recorded), what="every span")
        requests = list(langfuse.received)

    for request in requests:
        assert request.path == "/api/public/otel/v1/traces"
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert (headers["authorization"], headers["x-langfuse-ingestion-version"]) == ("Basic cGs6c2s=", "4")
    found = spans_in(requests)
    assert len(found) == len(recorded)
    for span in found:
        given = plain_attributes(span.attributes)
        validation = " (validation)" if given["rollout.validate"] else ""
        experiment = given["rollout.experiment_name"]
        assert given["session.id"] == f"step {given['rollout.step']}{validation} - {experiment}"
        assert list(given["langfuse.trace.tags"]) == [experiment]
        for name in ("step", "sample_index", "rollout_n", "validate"):
            assert given[f"langfuse.trace.metadata.{name}"] == given[f"rollout.{name}"], (span.name, name)
        assert given["langfuse.observation.type"] == TYPES[span.name]


def spans_in(requests: list[Any]) -> list[Any]:
    """Return the spans of OTLP requests."""
    bodies = [gzip.decompress(request.body) for request in requests]
    sent = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    return [
        span
        for one in sent
        for resource in one.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
