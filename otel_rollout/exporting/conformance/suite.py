"""Test how an exporter meets failures of its target."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_rollout.base import semconv
from otel_rollout.exporting.api import Checks, ExportFailure, FailureKind, NamesDestination
from otel_rollout.exporting.conformance.server import Answers, FakeServer, serving

SECRET = "planted-secret"  # noqa: S105 - planted, to be looked for
"""The credential that the exporter under test gets."""
STATUSES = {
    FailureKind.REJECTED: (400, 409, 413, 422),
    FailureKind.REFUSED: (301, 302, 307, 401, 402, 403, 404, 405, 406, 410, 411, 415, 451, 501),
    FailureKind.UNAVAILABLE: (408, 425, 429, 499, 500, 502, 503, 504, 507, 520, 524, 529),
}
"""HTTP status of the request with spans → kind of failure that each exporter must report."""


class ExporterConformance:
    """Tests of an exporter; a subclass whose name begins with ``Test`` says which.

    ::

        class TestLogbook(ExporterConformance):
            writes_to = "/spans"

            def build(self, url):
                return LogbookExporter(url=url, token=SECRET, timeout=2)

    Attributes:
        writes_to (str): part of the path of the request that carries spans. answers (Answers): what a healthy
            server answers, by part of the path; ``{}`` to everything else.
    """

    writes_to: ClassVar[str]
    answers: ClassVar[Answers] = MappingProxyType({})

    def build(self, url: str) -> SpanExporter:
        """Return the exporter, with a timeout of 2 s, and with ``SECRET`` as its credential.

        Args:
            url: address of the server.
        """
        raise NotImplementedError

    @pytest.fixture
    def server(self) -> Iterator[FakeServer]:
        """A server that answers as a healthy backend of the exporter does."""
        with serving(self.answers) as fake:
            yield fake

    @pytest.fixture
    def exporter(self, server: FakeServer) -> Iterator[Any]:
        """The exporter, set up for that server."""
        built = self.build(server.uri)
        yield built
        built.shutdown()

    @pytest.fixture
    def spans(self) -> list[ReadableSpan]:
        """A trajectory with a model call and a tool call."""
        return trajectory()

    def test_healthy_server_gets_the_spans(
        self, server: FakeServer, exporter: Any, spans: list[ReadableSpan]
    ) -> None:
        """Without a failure the export succeeds, and the request is sent once; `last_failure` is None."""
        assert exporter.export(spans) is SpanExportResult.SUCCESS, exporter.last_failure
        assert exporter.last_failure is None
        assert len(server.requests(self.writes_to)) == 1

    @pytest.mark.parametrize(
        ("status", "kind"), [(status, kind) for kind, statuses in STATUSES.items() for status in statuses]
    )
    def test_status_has_one_kind_for_every_exporter(
        self, server: FakeServer, exporter: Any, spans: list[ReadableSpan], status: int, kind: FailureKind
    ) -> None:
        """A status of the request with spans becomes one kind of failure; its message quotes no web page."""
        server.answers[self.writes_to] = (status, {}, b"<html>no</html>")
        failure = failure_of(exporter, spans)
        assert failure.kind is kind
        assert "<html>" not in failure.message

    def test_failure_is_over_after_a_success(
        self, server: FakeServer, exporter: Any, spans: list[ReadableSpan]
    ) -> None:
        """`last_failure` is that of the last export."""
        server.answers[self.writes_to] = (503, {}, b"")
        failure_of(exporter, spans)
        del server.answers[self.writes_to]
        assert exporter.export(spans) is SpanExportResult.SUCCESS
        assert exporter.last_failure is None

    def test_rejection_of_a_request_without_spans_blames_no_span(
        self, server: FakeServer, exporter: Any, spans: list[ReadableSpan]
    ) -> None:
        """A 400 to a request before the spans means a wrong set-up, and no span is lost."""
        for path in self.answers:
            server.answers[path] = (400, {}, b"The plain HTTP request was sent to HTTPS port")
        if self.answers:
            assert failure_of(exporter, spans).kind is FailureKind.REFUSED

    @pytest.mark.parametrize(
        ("header", "low", "high"),
        [
            ("7", 7, 7),
            ("in a minute", 50, 61),
            ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
            ("soon", None, None),
            ("Thu, 01 Jan 2026 00:00:00 +99999999999999999999", None, None),
            ("", None, None),
        ],
    )
    def test_retry_after_is_passed_on(
        self,
        server: FakeServer,
        exporter: Any,
        spans: list[ReadableSpan],
        header: str,
        low: float | None,
        high: float | None,
    ) -> None:
        """Retry-After is read as seconds and as a date; anything else counts as absent."""
        if header == "in a minute":
            header = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
        server.answers[self.writes_to] = (429, {"Retry-After": header}, b"")
        found = failure_of(exporter, spans).retry_after
        if low is None or high is None:
            assert found is None
        else:
            assert found is not None
            assert low <= found <= high

    @pytest.mark.parametrize("fault", ["nobody listens", "connection closed", "silence"])
    def test_missing_answer_is_an_outage(self, spans: list[ReadableSpan], fault: str) -> None:
        """A target that is down, hangs up or is silent counts as an outage, and the message names it."""
        with serving({"/": (0, {}, b"")}) as fake, socket.create_server(("127.0.0.1", 0)) as silent:
            url = fake.uri
            if fault == "nobody listens":
                url = "http://127.0.0.1:1"
            elif fault == "silence":
                url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            exporter = self.build(url)
            failure = failure_of(exporter, spans)
            exporter.shutdown()
        assert failure.kind is FailureKind.UNAVAILABLE
        assert url in failure.message

    @pytest.mark.parametrize(
        "body", [b"", b"null", b"[]", b'"text"', b'{"a": ', b"\xff\xfe", b"<html>hello</html>"]
    )
    @pytest.mark.parametrize("status", [200, 400, 500])
    def test_answer_of_no_known_form_raises_nothing(
        self, server: FakeServer, exporter: Any, spans: list[ReadableSpan], status: int, body: bytes
    ) -> None:
        """`export` returns a result for any answer to any request."""
        for path in (*self.answers, self.writes_to):
            for content_type in ("application/json", "application/x-protobuf", "text/html"):
                server.answers[path] = (status, {"Content-Type": content_type}, body)
                result = exporter.export(spans)
                assert (result is SpanExportResult.SUCCESS) is (exporter.last_failure is None)

    def test_secret_is_in_no_message(
        self,
        server: FakeServer,
        exporter: Any,
        spans: list[ReadableSpan],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The credential is sent, but a server's quote of it gets into no message or log."""
        body = f'{{"message": "no such key: {SECRET}"}}'.encode()
        server.answers[self.writes_to] = (401, {"Content-Type": "application/json"}, body)
        with caplog.at_level(logging.WARNING):
            failure = failure_of(exporter, spans)
        assert failure.kind is FailureKind.REFUSED
        assert "no such key: ***" in failure.message
        assert SECRET not in failure.message + caplog.text + repr(exporter.last_failure)
        assert server.requests(self.writes_to)[0].headers["Authorization"]

    def test_failure_is_logged_once(
        self,
        server: FakeServer,
        exporter: Any,
        spans: list[ReadableSpan],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Failing again for one reason adds nothing to the log; another reason does."""
        for status in (503, 503, 503, 404):
            server.answers[self.writes_to] = (status, {}, b"")
            failure_of(exporter, spans)
        logged = [record for record in caplog.records if record.name == type(exporter).__module__]
        assert len(logged) == 2

    def test_span_that_cannot_be_encoded_is_rejected(self, exporter: Any, spans: list[ReadableSpan]) -> None:
        """A span that cannot be encoded fails as rejected or unavailable, so that bisecting finds it."""
        broken = ReadableSpan("no context", parent=spans[0].parent, attributes={semconv.PROJECT_NAME: "any"})
        assert failure_of(exporter, [broken]).kind in (FailureKind.REJECTED, FailureKind.UNAVAILABLE)

    def test_export_after_shutdown_is_refused(self, exporter: Any, spans: list[ReadableSpan]) -> None:
        """After shutdown an export is a failure with a reason; a second shutdown does nothing."""
        exporter.shutdown()
        exporter.shutdown()
        failure = failure_of(exporter, spans)
        assert failure.kind is FailureKind.REFUSED
        assert "shut down" in failure.message
        assert exporter.force_flush() is True

    def test_check_says_what_export_would(self, server: FakeServer, exporter: Any) -> None:
        """`check` passes on a healthy server, sends no span, and reports failures."""
        assert isinstance(exporter, Checks)
        assert exporter.check() is None
        assert getattr(exporter, "last_failure", None) is None
        for status, kind in ((401, FailureKind.REFUSED), (503, FailureKind.UNAVAILABLE)):
            for path in (*self.answers, self.writes_to):
                server.answers[path] = (status, {}, b"")
            failure = exporter.check()
            assert failure is not None
            assert failure.kind is kind

    def test_destination_holds_no_credential_and_connects_nowhere(
        self, server: FakeServer, exporter: Any
    ) -> None:
        """The phrase for people names the target, without a request and without a secret."""
        if isinstance(exporter, NamesDestination):
            assert server.uri in exporter.destination("any")
            assert SECRET not in exporter.destination("any")
        assert server.received == []

    def test_exported_span_is_not_changed(self, exporter: Any, spans: list[ReadableSpan]) -> None:
        """Exporters share spans, so an export does not change a span's JSON."""
        before = [span.to_json() for span in spans]
        exporter.export(spans)
        assert [span.to_json() for span in spans] == before

    def test_exports_from_several_threads_come_one_by_one(
        self, exporter: Any, spans: list[ReadableSpan]
    ) -> None:
        """A SimpleSpanProcessor exports from any thread: each export succeeds."""
        results: list[SpanExportResult] = []
        threads = [
            threading.Thread(target=lambda: results.append(exporter.export(spans)), daemon=True)
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [SpanExportResult.SUCCESS] * 8


def failure_of(exporter: Any, spans: list[ReadableSpan]) -> ExportFailure:
    """Export, insist on a failure and return it."""
    assert exporter.export(spans) is SpanExportResult.FAILURE
    assert isinstance(exporter.last_failure, ExportFailure)
    return exporter.last_failure


def trajectory() -> list[ReadableSpan]:
    """Return the spans of a trajectory, as its recording makes them: children first."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("otel_rollout")
    identity: dict[str, Any] = {
        semconv.PROJECT_NAME: "any",
        semconv.EXPERIMENT_NAME: "grpo",
        semconv.STEP: 1,
        semconv.SAMPLE_INDEX: 7,
        semconv.ROLLOUT_N: 0,
        semconv.VALIDATE: False,
    }
    with tracer.start_as_current_span("rollout_trace", attributes=identity) as root:
        root.set_attribute(semconv.SPAN_KIND, semconv.KIND_AGENT)
        for name, kind in (("generate", semconv.KIND_LLM), ("calculate", semconv.KIND_TOOL)):
            with tracer.start_as_current_span(name, attributes=identity) as span:
                span.set_attribute(semconv.SPAN_KIND, kind)
                span.set_attribute(semconv.INPUT_VALUE, '{"expression": "3 + 4"}')
                span.set_attribute(semconv.OUTPUT_VALUE, "7")
    return list(memory.get_finished_spans())
