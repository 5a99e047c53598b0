"""Two spans of a trace with one id: both are recorded, under ids that stay when they are sent again."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rollout.cli import report_output
from otel_rollout.otlp import received_protobuf
from otel_rollout.record.receiver.span_ids import SpanIds
from otel_rollout.record.recording.provider import mark_of
from otel_rollout.spool.receiver_files import ReceiverCounts, publish_counts
from tests.receiver.support import START, InProcess, in_process, request, span
from tests.spool_reader import Recorded, tree

LOCAL, REMOTE = 0x100, 0x300
"""Flags of a span whose parent is in its process, or in another one."""
SEED = 0


def worker_spans(rank: int) -> list[dict[str, Any]]:
    """Return the spans of a worker that seeds its random numbers, as vLLM's do; children end first."""
    ids = random.Random(SEED)
    model, weights = (ids.getrandbits(64).to_bytes(8, "big") for _ in range(2))
    start = START + 1000 * rank
    return [
        span(
            name="Load weights",
            span_id=weights,
            parent_span_id=model,
            flags=LOCAL,
            start_time_unix_nano=start + 2,
            end_time_unix_nano=start + 3,
        ),
        span(
            name="Load model",
            span_id=model,
            parent_span_id=bytes([9] * 8),
            flags=REMOTE,
            start_time_unix_nano=start + 1,
            end_time_unix_nano=start + 4,
        ),
    ]


ENGINE = span(name="Start", span_id=bytes([9] * 8), start_time_unix_nano=START)


async def post_workers(receiver: InProcess, *ranks: int, single: bool = False) -> None:
    """Send the spans of workers, all of a worker in one request or each in its own."""
    for rank in ranks:
        spans = worker_spans(rank)
        for part in [[one] for one in spans] if single else [spans]:
            answer = await receiver.post(request(part, resource={"vllm.process_id": str(rank)}))
            assert answer.status_code == 200


def distinct(spans: list[Recorded]) -> list[Recorded]:
    """Return one span of each id, which must be equal in all repetitions."""
    by_id = {one.span.span_id: one for one in spans}
    assert all(by_id[one.span.span_id].span == one.span for one in spans)
    return list(by_id.values())


@pytest.mark.parametrize("single", [True, False])
async def test_workers_seeded_alike_keep_their_spans_apart(tmp_path: Path, single: bool) -> None:
    """Three workers of one start have the same ids in one trace; each child stays below its own parent."""
    with in_process(tmp_path / "node") as receiver:
        await receiver.post(request([ENGINE]))
        await post_workers(receiver, 0, 1, 2, single=single)
        found = tree(receiver.recorded())
        assert found == {"Start": [{"Load model": ["Load weights"]}] * 3}
        assert receiver.counts.changed_ids == 4


def bodies_of(process: int, *spans: dict[str, Any]) -> list[bytes]:
    """Return a request for each span of a process that names its number."""
    times = {"start_time_unix_nano": START + process, "end_time_unix_nano": START + 9}
    return [request([{**one, **times}], resource={"vllm.process_id": str(process)}) for one in spans]


@pytest.mark.parametrize("is_root_first", [True, False])
async def test_child_that_comes_before_its_parent_is_below_its_own(
    tmp_path: Path, is_root_first: bool
) -> None:
    """Another process seeded alike has the parent's id, not the child's: their numbers tell them apart."""
    root, child_1, child_2 = (number.to_bytes(8, "big") for number in range(1, 4))
    above = {"span_id": root, "parent_span_id": bytes([9] * 8), "flags": REMOTE}
    below = {"parent_span_id": root, "flags": LOCAL}
    one = bodies_of(1, span(name="child 1", **{**below, "span_id": child_1}), span(name="root 1", **above))
    two = bodies_of(2, span(name="child 2", **{**below, "span_id": child_2}), span(name="root 2", **above))
    order = [one[1], *two] if is_root_first else [one[0], two[0], one[1], two[1]]
    with in_process(tmp_path / "node") as receiver:
        for body in (request([ENGINE]), *order, two[0]):
            assert (await receiver.post(body)).status_code == 200
        found = tree(distinct(receiver.recorded()))
    first = "root 1" if is_root_first else {"root 1": ["child 1"]}
    assert found == {"Start": [first, {"root 2": ["child 2"]}]}


async def test_two_providers_of_one_process_share_its_ids(tmp_path: Path) -> None:
    """A library with a provider and a resource of its own makes spans below those of the application."""
    below = {"parent_span_id": (1).to_bytes(8, "big"), "flags": LOCAL}
    with in_process(tmp_path / "node") as receiver:
        for spans, resource in (
            ([span(2, name="of a library", **below)], {"vllm.process_id": "7"}),
            ([span(1, name="of the application")], {"process.pid": "7"}),
            ([span(3, name="of another library", **below)], {"service.name": "library"}),
        ):
            await receiver.post(request(spans, resource=resource))
        found = tree(receiver.recorded())
        assert found == {"of the application": ["of a library", "of another library"]}
        assert receiver.counts.changed_ids == 0


async def test_spans_that_are_sent_again_keep_their_ids(tmp_path: Path) -> None:
    """Senders repeat what was not acknowledged, in any order."""
    with in_process(tmp_path / "node") as receiver:
        await receiver.post(request([ENGINE]))
        await post_workers(receiver, 0, 1, 1, 0, 1)
        found = receiver.recorded()
        assert len(found) == 11
        assert tree(distinct(found)) == {"Start": [{"Load model": ["Load weights"]}] * 2}


async def test_repeated_ids_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The receiver's log says why, and what to do."""
    with in_process(tmp_path / "node") as receiver:
        await post_workers(receiver, 0, 1, 2)
    (message,) = [message for message in caplog.messages if "ids of other spans" in message]
    assert "id_generator" in message


async def test_status_counts_changed_ids(tmp_path: Path) -> None:
    """The number is published with the receiver's other counts, and has a line."""
    with in_process(tmp_path / "node") as receiver:
        await post_workers(receiver, 0, 1)
        publish_counts(receiver.node_dir, receiver.counts)
    report: Any = SimpleNamespace(directory=str(tmp_path / "node"))
    said = [*report_output._received(report)]
    assert "received spans with ids of other spans, which got new ones: 2" in said
    assert said[0].endswith(": spans received: 4")


async def test_requests_with_one_id_have_phases_of_their_own(tmp_path: Path) -> None:
    """The phases of an engine's request hang on the id that the request got."""
    names = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")
    with in_process(tmp_path / "node") as receiver:
        for start in (START, START + 10**9):
            body = ExportTraceServiceRequest.FromString(
                request(
                    [span(name="llm_request", start_time_unix_nano=start, end_time_unix_nano=start + 10**9)]
                )
            )
            sent = body.resource_spans[0].scope_spans[0].spans[0]
            for name in names:
                sent.attributes.add(key=f"gen_ai.latency.{name}").value.double_value = 0.1
            await receiver.post(body.SerializeToString())
        found = receiver.recorded()
    requests = [one for one in found if one.name == "llm_request"]
    assert len({one.span.span_id for one in requests}) == 2
    for one in requests:
        below = [phase.name for phase in found if phase.span.parent_span_id == one.span.span_id]
        assert below == ["queue", "prefill", "decode"]
    assert len({one.span.span_id for one in found}) == 8


SENT = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5)),  # process, id, generation
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SENT)
def test_no_two_spans_ever_share_an_id(sent: list[tuple[int, int, int]]) -> None:
    """In any order of processes, ids and repetitions, spans with other starts have other ids.

    A span may get a second id only if it came before its process was known to repeat ids.
    """
    ids = SpanIds(ReceiverCounts(), "the-run")
    owner: dict[str, tuple[int, int, int]] = {}
    for process, number, generation in sent:
        start = START + process * 100 + number * 10 + generation
        sent_span = span(number + 1, start_time_unix_nano=start, end_time_unix_nano=start)
        body = request([sent_span], resource={"pid": str(process)})
        (scope,) = received_protobuf.scopes_of(ExportTraceServiceRequest.FromString(body))
        (decoded,) = map(scope.decode, scope.spans)
        ids.make_unique(scope, decoded)
        assert owner.setdefault(decoded.span_id, (process, number, generation)) == (
            process,
            number,
            generation,
        )


ROOT = bytes([5] * 8)
"""The id of a root that the application's own generator has drawn: it has no mark."""
OURS = [bytes.fromhex(mark_of("the-run").decode() + f"{number:010x}") for number in (1, 2)] + [ROOT]


async def test_span_with_the_id_of_an_operation_of_another_node_is_below_it(tmp_path: Path) -> None:
    """The receiver does not know the trajectory; the span is no second root of its trace, also sent again."""
    with in_process(tmp_path / "node") as receiver:
        for _ in range(2):
            await receiver.post(request([span(span_id=OURS[0])]))
        found, again = receiver.recorded()
        assert receiver.counts.changed_ids == 2
    assert found.span == again.span
    assert found.span.parent_span_id == OURS[0]
    assert found.span.span_id not in OURS


SENT_WITH_OURS = st.lists(
    st.tuples(
        st.integers(0, 1),  # process
        st.integers(0, 4),  # id: one of ours, or one of the process
        st.integers(0, 2),  # generation
        st.sampled_from([None, *range(5)]),  # parent: as the id, or none
        st.sampled_from([0, LOCAL, REMOTE]),
    ),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SENT_WITH_OURS)
def test_no_span_ever_has_an_id_of_ours(sent: list[tuple[int, int, int, int | None, int]]) -> None:
    """In any order, with any parents and repetitions, each span has one id, which is no other span's.

    A parent of ours stays, unless the process has sent a span with that id, and calls the parent local.
    """
    ids = SpanIds(ReceiverCounts(), "the-run")
    named: dict[bytes, tuple[int, int, int]] = {}
    given_ids: dict[tuple[int, int, int], bytes] = {}
    taken: dict[tuple[int, int], bytes] = {}
    for process, number, generation, parent, flags in sent:
        own = [*OURS, *(bytes([process + 1] * 7 + [extra]) for extra in (1, 2))]
        key = (process, number, generation if number < len(OURS) else 0)
        above = b"" if parent in (None, number) else own[parent or 0]
        start = START + 100 * process + 10 * number + key[2]
        fields = {"start_time_unix_nano": start, "end_time_unix_nano": start, "flags": flags}
        body = request(
            [span(span_id=own[number], parent_span_id=above, **fields)],
            resource={"process.pid": f"{process + 1}"},
        )
        (scope,) = received_protobuf.scopes_of(ExportTraceServiceRequest.FromString(body))
        (decoded,) = map(scope.decode, scope.spans)
        ids.make_unique(scope, decoded, ROOT.hex())
        found = bytes.fromhex(decoded.span_id)
        assert found not in OURS
        assert found == own[number] or number < len(OURS)
        assert named.setdefault(found, key) == key
        assert given_ids.setdefault(key, found) == found
        if number < len(OURS):
            taken[process, number] = found
        has_followed = flags == LOCAL and parent is not None and (process, parent) in taken
        expected = taken[process, parent or 0] if has_followed and above else above
        assert bytes.fromhex(decoded.parent_id) == (expected or (own[number] if number < len(OURS) else b""))


def test_memory_does_not_grow_with_spans() -> None:
    """The table is allocated once; fifty thousand spans add nothing."""
    ids = SpanIds(ReceiverCounts(), "the-run")
    (scope,) = received_protobuf.scopes_of(ExportTraceServiceRequest.FromString(request([span()])))
    (decoded,) = map(scope.decode, scope.spans)
    tracemalloc.start()
    try:
        for number in range(50_000):
            decoded.span_id = f"{number + 1:016x}"
            decoded.start_ns = START + number
            ids.make_unique(scope, decoded)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
