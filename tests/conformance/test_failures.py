"""Check each exporter against failing targets. A new exporter adds a class."""

from __future__ import annotations

from typing import Any, ClassVar

from otel_rollout.exporting.conformance import SECRET, Answers, ExporterConformance
from otel_rollout.exporting.entry_points import load
from tests.exporting.page import example


def healthy(body: bytes) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, body


class TestMlflow(ExporterConformance):
    """The exporter ``mlflow``."""

    writes_to = "/v1/traces"
    answers: ClassVar[Answers] = {
        "/version": healthy(b"3.17.2"),
        "/experiments/get": healthy(b'{"experiment": {"experiment_id": "1", "name": "any"}}'),
    }

    def build(self, url: str) -> Any:
        return load("mlflow", {"tracking_uri": url, "token": SECRET, "timeout": 2})


class TestWeave(ExporterConformance):
    """The exporter ``weave``."""

    writes_to = "/calls/complete"
    answers: ClassVar[Answers] = {
        "/graphql": healthy(b'{"data": {"viewer": {"username": "u"}, "project": {"name": "any"}}}'),
        "/calls/stream_query": healthy(b""),
    }

    def build(self, url: str) -> Any:
        options = {
            "api_key": SECRET,
            "entity": "team",
            "base_url": url,
            "trace_server_url": url,
            "timeout": 2,
        }
        return load("weave", options)


class TestOtlpProtobuf(ExporterConformance):
    """The exporter ``otlp`` with protobuf."""

    writes_to = "/v1/traces"
    protocol = "http/protobuf"

    def build(self, url: str) -> Any:
        headers = {"authorization": f"Bearer {SECRET}"}
        options = {
            "endpoint": f"{url}/v1/traces",
            "protocol": self.protocol,
            "headers": headers,
            "timeout": 2,
        }
        return load("otlp", options)


class TestOtlpJson(TestOtlpProtobuf):
    """The exporter ``otlp`` with JSON."""

    protocol = "http/json"


class TestExampleOfThePage(ExporterConformance):
    """The exporter of docs/extending.md."""

    writes_to = "/spans"

    def build(self, url: str) -> Any:
        return example()(url=url, token=SECRET, timeout=2)
