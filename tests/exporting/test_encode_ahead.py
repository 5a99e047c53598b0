"""Spans that are encoded before their export are exported as spans that are not."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator

import orjson
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, set_span_in_context

from otel_rollout.exporting.api import EncodesAhead, FailureKind
from otel_rollout.otlp import evaluations
from tests.conformance.failing import ADAPTERS, FailureAdapter
from tests.fake_server import FakeServer, serving
from tests.sdk_spans import Rollouts, deliver

MLFLOW, WEAVE = (next(one for one in ADAPTERS if one.name == name) for name in ("mlflow", "weave"))


@pytest.fixture(params=[MLFLOW, WEAVE], ids=lambda adapter: adapter.name)
def adapter(request: pytest.FixtureRequest) -> FailureAdapter:
    found: FailureAdapter = request.param
    return found


@pytest.fixture
def server(adapter: FailureAdapter) -> Iterator[FakeServer]:
    with serving(adapter.answers) as fake:
        yield fake


def ahead(exporter: SpanExporter, spans: list[ReadableSpan]) -> Callable[[], SpanExportResult]:
    assert isinstance(exporter, EncodesAhead)
    return exporter.encode_ahead(spans)


def written(server: FakeServer, adapter: FailureAdapter) -> list[bytes]:
    """Return the bodies with spans that the server got, and forget all requests."""
    bodies = [request.body for request in server.requests(adapter.writes_to)]
    server.received.clear()
    return [gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body for body in bodies]


def trajectories(project: str, number: int = 3) -> list[ReadableSpan]:
    rollouts = Rollouts(project)
    for _ in range(number):
        rollouts.trajectory(reward=None)  # a score needs more of a server
    return rollouts.ended()


def test_requests_are_equal(server: FakeServer, adapter: FailureAdapter) -> None:
    """The server gets the same bytes; the export can be repeated."""
    first, spans = trajectories("p"), trajectories("p")
    bodies = []
    for is_ahead in (False, True):
        exporter = adapter.build(server.uri)
        deliver(exporter, first)
        written(server, adapter)
        export = ahead(exporter, spans) if is_ahead else lambda: exporter.export(spans)  # noqa: B023
        assert export() is SpanExportResult.SUCCESS
        bodies.append(written(server, adapter))
        assert export() is SpanExportResult.SUCCESS
        exporter.shutdown()
    assert bodies[0] == bodies[1] != []


def test_encoding_ahead_sends_nothing(server: FakeServer, adapter: FailureAdapter) -> None:
    """Before the first export the project is unknown; encoding does not ask for it."""
    exporter = adapter.build(server.uri)
    export = ahead(exporter, trajectories("p"))
    assert server.received == []
    assert export() is SpanExportResult.SUCCESS
    assert written(server, adapter)
    exporter.shutdown()


def test_span_that_cannot_be_encoded_is_rejected_by_its_export(
    server: FakeServer, adapter: FailureAdapter
) -> None:
    """encode_ahead() raises nothing; the export says what is wrong."""
    (good, bad) = (trajectories("p", 1) for _ in range(2))
    exporter = adapter.build(server.uri)
    deliver(exporter, good)
    bad[0]._start_time = "now"  # type: ignore[assignment]
    export = ahead(exporter, bad)
    assert export() is SpanExportResult.FAILURE
    assert exporter.last_failure.kind is FailureKind.REJECTED  # type: ignore[attr-defined]
    exporter.shutdown()


def test_span_without_project_goes_where_the_batch_before_went(
    server: FakeServer, adapter: FailureAdapter
) -> None:
    """The batch before is exported after this span was encoded, and decides its project."""
    exporter, other = (adapter.build(server.uri) for _ in range(2))
    rollouts = Rollouts("p")
    with rollouts.span("root"), rollouts.foreign_span("inside"):
        pass
    foreign, root = rollouts.ended()
    deliver(exporter, trajectories("q", 1))
    export = ahead(exporter, [foreign])
    deliver(exporter, [root])
    written(server, adapter)
    assert export() is SpanExportResult.SUCCESS
    found = written(server, adapter)
    deliver(other, [root])
    written(server, adapter)
    deliver(other, [foreign])
    assert found == written(server, adapter)
    for one in (exporter, other):
        one.shutdown()


@pytest.mark.parametrize("adapter", [WEAVE], indirect=True, ids=["weave"])
def test_root_shows_the_score_of_the_batch_before(server: FakeServer, adapter: FailureAdapter) -> None:
    """A newer score that arrives after the root was encoded is in the root's output."""
    rollouts, start = Rollouts("p"), time.time_ns()
    repeated = {"rollout.score.reward": 0.25, "rollout.score_time.reward": start + 10_000}
    root = rollouts.begin("root", start, **repeated)
    above = set_span_in_context(NonRecordingSpan(root.get_span_context()))
    root.end(start + 5_000)
    newer = evaluations.attributes_of("reward", 0.75, None, None)
    rollouts.begin("score reward", start + 20_000, above, **newer).end(start + 20_000)
    root_span, score_span = rollouts.ended()
    exporter = adapter.build(server.uri)
    deliver(exporter, trajectories("p", 1))
    export = ahead(exporter, [root_span])
    deliver(exporter, [score_span])
    written(server, adapter)
    assert export() is SpanExportResult.SUCCESS
    (body,) = written(server, adapter)
    (call,) = orjson.loads(body)["batch"]
    assert call["output"]["reward"] == 0.75
    exporter.shutdown()
