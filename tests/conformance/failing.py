"""Define the failure suite's adapter of an exporter, and the adapters under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.trace.export import SpanExporter

from otel_rollout.exporting.entry_points import load
from tests.exporting.page import example

SECRET = "planted-secret"


def healthy(body: bytes) -> tuple[int, Mapping[str, str], bytes]:
    return 200, {}, body


@dataclass(frozen=True)
class FailureAdapter:
    """An exporter under test.

    Attributes:
        name: for test ids.
        build: makes the exporter for a server's address, with ``SECRET`` among its credentials.
        writes_to: part of the path of the request that carries spans.
        answers: what a server in order answers, by part of the path; ``{}`` to everything else.
    """

    name: str
    build: Callable[[str], SpanExporter]
    writes_to: str
    answers: Mapping[str, tuple[int, Mapping[str, str], bytes]] = field(default_factory=dict)


def _otlp(protocol: str) -> FailureAdapter:
    def options(url: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {SECRET}"}
        return {"endpoint": url + "/v1/traces", "protocol": protocol, "headers": headers, "timeout": 2}

    return FailureAdapter(f"otlp {protocol}", lambda url: load("otlp", options(url)), "/v1/traces")


ADAPTERS = (
    FailureAdapter(
        "mlflow",
        lambda url: load("mlflow", {"tracking_uri": url, "token": SECRET, "timeout": 2}),
        "/v1/traces",
        {
            "/version": healthy(b"3.17.2"),
            "/experiments/get": healthy(b'{"experiment": {"experiment_id": "1", "name": "any"}}'),
        },
    ),
    FailureAdapter(
        "weave",
        lambda url: load(
            "weave",
            {"api_key": SECRET, "entity": "team", "base_url": url, "trace_server_url": url, "timeout": 2},
        ),
        "/calls/complete",
        {
            "/graphql": healthy(b'{"data": {"viewer": {"username": "u"}, "project": {"name": "any"}}}'),
            "/calls/stream_query": healthy(b""),
        },
    ),
    _otlp("http/protobuf"),
    _otlp("http/json"),
    FailureAdapter("docs/exporters.md", lambda url: example()(url=url, token=SECRET, timeout=2), "/spans"),
)
