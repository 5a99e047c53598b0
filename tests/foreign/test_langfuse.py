"""Langfuse's own client sends the path, headers and names of collector-config/to-langfuse.yaml."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from langfuse import Langfuse, propagate_attributes
from langfuse._client.attributes import LangfuseOtelSpanAttributes
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from tests.fake_server import serving
from tests.spool_reader import plain_attributes

CONFIGURATION = Path(__file__).parents[2] / "collector-config" / "to-langfuse.yaml"


def test_client_sends_the_names_that_our_configuration_sets() -> None:
    """Session, tags, metadata and type have the client's names; path and header, too."""
    with serving({"/api/public/otel/v1/traces": (200, {}, b"")}) as server:
        client = Langfuse(
            public_key="pk", secret_key="sk", base_url=server.uri, tracer_provider=TracerProvider()
        )
        with (
            propagate_attributes(session_id="step 1", tags=["grpo"], metadata={"step": "1"}),
            client.start_as_current_observation(name="turn", as_type="generation"),
        ):
            pass
        client.flush()
        client.shutdown()
        [request] = server.requests("/v1/traces")
    headers = {name.lower(): value for name, value in request.headers.items()}
    body = gzip.decompress(request.body) if headers.get("content-encoding") == "gzip" else request.body
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    [span] = [span for scope in resource.scope_spans for span in scope.spans]
    given = plain_attributes(span.attributes)

    assert request.path == "/api/public/otel/v1/traces"
    assert headers["authorization"] == "Basic cGs6c2s="
    text = CONFIGURATION.read_text()
    assert "/api/public/otel\n" in text
    set_here = set(re.findall(r'set\(span\.attributes\["([^"]+)"\]', text))
    assert set_here == {"session.id", "langfuse.trace.tags", "langfuse.observation.type"} <= set(given)
    assert given["langfuse.trace.metadata.step"] == "1"
    assert f'"{LangfuseOtelSpanAttributes.TRACE_METADATA}."' in text
    assert given["langfuse.observation.type"] == "generation"
