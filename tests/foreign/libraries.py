"""Start observability libraries as an application does, each with a backend on this machine."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from tests.fake_server import FakeServer, serving

WEAVE_PROJECT = "local-team/beside"
"""The project of ``weave.init``."""
_servers = ExitStack()


@dataclass(frozen=True)
class Library:
    """A started library.

    Attributes:
        native: context manager around a span of the library's own API.
        received: returns the names of the spans that its backend has, with their numbers.
        scope: instrumentation scope of native spans, if they are OpenTelemetry's.
    """

    native: Callable[[], AbstractContextManager[Any]]
    received: Callable[[], Counter[str]]
    scope: str = ""


def sentry() -> Library:
    """Start Sentry's SDK without OpenTelemetry; its transport keeps what it is given."""
    import sentry_sdk
    from sentry_sdk.transport import Transport

    names: Counter[str] = Counter()

    class Kept(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            transaction = envelope.get_transaction_event()
            if transaction is not None:
                names.update([transaction["transaction"], *(s["description"] for s in transaction["spans"])])

    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=Kept, traces_sample_rate=1.0)

    def native() -> AbstractContextManager[Any]:
        if sentry_sdk.get_current_span() is None:
            return sentry_sdk.start_transaction(name="native")
        return sentry_sdk.start_span(op="test", name="native")

    return Library(native, lambda: names)


def sentry_otlp() -> Library:
    """Start Sentry's SDK with its OTLP integration, which adds an exporter to the SDK's provider."""
    import sentry_sdk
    from opentelemetry import trace
    from sentry_sdk.integrations.otlp import OTLPIntegration

    server = _servers.enter_context(serving())
    dsn = server.uri.replace("http://", "http://key@") + "/1"
    sentry_sdk.init(dsn=dsn, integrations=[OTLPIntegration()])
    tracer = trace.get_tracer("native")

    def received() -> Counter[str]:
        trace.get_tracer_provider().force_flush()  # type: ignore[attr-defined]
        return _otlp_names(server, "/otlp/")

    return Library(lambda: tracer.start_as_current_span("native"), received, "native")


def datadog() -> Library:
    """Start ddtrace in its OpenTelemetry mode; a filter sees the traces that it would send."""
    server = _servers.enter_context(serving())
    os.environ["DD_TRACE_OTEL_ENABLED"] = "true"
    os.environ["DD_TRACE_AGENT_URL"] = server.uri
    os.environ["DD_INSTRUMENTATION_TELEMETRY_ENABLED"] = "false"
    os.environ["DD_REMOTE_CONFIGURATION_ENABLED"] = "false"
    import ddtrace.auto  # noqa: F401
    from ddtrace.trace import TraceFilter, tracer

    names: Counter[str] = Counter()

    class Kept(TraceFilter):
        def process_trace(self, trace: list[Any]) -> None:
            names.update(span.resource for span in trace)

    tracer.configure(trace_processors=[Kept()])
    return Library(lambda: tracer.trace("native"), lambda: names)


def logfire() -> Library:
    """Start Logfire with a processor of the application in the place of its service."""
    import logfire
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory = InMemorySpanExporter()
    logfire.configure(
        send_to_logfire=False, console=False, additional_span_processors=[SimpleSpanProcessor(memory)]
    )

    def received() -> Counter[str]:
        spans = memory.get_finished_spans()
        return Counter(
            s.name for s in spans if (s.attributes or {}).get("logfire.span_type") != "pending_span"
        )

    return Library(lambda: logfire.span("native"), received, "logfire")


def weave() -> Library:
    """Start Weave's client in front of a server that stores nothing."""
    viewer = {"username": "someone", "defaultEntity": {"name": "local-team"}}
    project = {"upsertModel": {"model": {"name": "beside", "entity": {"name": "local-team"}}}}
    answers: dict[str, Any] = {
        "/server_info": {"min_required_weave_python_version": "0.0.1", "trace_server_version": None},
        "/graphql": {"data": {"viewer": viewer, **project, "model": {"name": "beside"}}},
    }
    json_type = {"Content-Type": "application/json"}
    server = _servers.enter_context(
        serving({path: (200, json_type, json.dumps(body).encode()) for path, body in answers.items()})
    )
    os.environ |= {
        "WANDB_API_KEY": "k" * 40,
        "WANDB_BASE_URL": server.uri,
        "WF_TRACE_SERVER_URL": server.uri,
        "WEAVE_PRINT_CALL_LINK": "false",
        "WANDB_ERROR_REPORTING": "false",
    }
    import weave
    from opentelemetry import trace

    weave.init(WEAVE_PROJECT)
    tracer = trace.get_tracer("native")

    def received() -> Counter[str]:
        trace.get_tracer_provider().force_flush()  # type: ignore[attr-defined]
        return _otlp_names(server, "/agents/otel/")

    return Library(lambda: tracer.start_as_current_span("native"), received, "native")


def _otlp_names(server: FakeServer, path: str) -> Counter[str]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    names: Counter[str] = Counter()
    for request in server.requests(path):
        body = gzip.decompress(request.body) if request.body[:2] == b"\x1f\x8b" else request.body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names.update(span.name for scope in resource.scope_spans for span in scope.spans)
    return names


LIBRARIES: dict[str, Callable[[], Library]] = {
    "sentry": sentry,
    "sentry-otlp": sentry_otlp,
    "datadog": datadog,
    "logfire": logfire,
    "weave": weave,
}
