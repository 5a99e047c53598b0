"""A spool of any content: whole lines arrive, others are counted, nothing hangs."""

import dataclasses
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

from otel_rollout.account import ledger, ledger_reader, node_report
from otel_rollout.deliver import delivery, forwarder
from otel_rollout.exporting import protobuf
from otel_rollout.otlp import scan, sdk
from otel_rollout.otlp import writer as otlp_json
from otel_rollout.otlp.json_line import UnreadableLineError, spans_of
from otel_rollout.otlp.span import Span
from otel_rollout.record.recording.provider import RecordingTracerProvider
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.settings import Settings
from otel_rollout.spool import journal, layout, segments
from otel_rollout.spool.locks import ForwarderLock
from otel_rollout.spool.root_table import MAX_LINE, read_open
from tests.fuzz import spans
from tests.fuzz.bounds import examples
from tests.fuzz.damage import damaged, damages, garbage
from tests.waiting import wait_for
from tests.waits import set_waits

LONGEST = 50_000
"""What a line may have here: less than what damage puts into some."""
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
HEAD = otlp_json.resource_head({"service.name": "s"})
SCOPE = otlp_json.scope_head("scope", "1", {"a": 1}, "schema")
FIELDS = {
    "traceId": "0" * 31 + "1",
    "spanId": "0" * 15 + "2",
    "parentSpanId": "0" * 15 + "3",
    "traceState": "a=b",
    "flags": 257,
    "name": "n",
    "kind": 1,
    "startTimeUnixNano": "1",
    "endTimeUnixNano": "2",
    "attributes": [{"key": "k", "value": {"stringValue": "v"}}],
    "events": [{"name": "e", "timeUnixNano": "1", "attributes": []}],
    "links": [{"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "2", "flags": 0, "attributes": []}],
    "status": {"code": 2, "message": "m"},
}
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
ODD_TEXT = st.text(max_size=5) | st.sampled_from(
    ["", "0" * 32, "f" * 32, "f" * 33, "-1", "1_0", " 1", "9" * 30, "9" * 5000, "NaN", "-Infinity", "٣"]
)
json_values = st.recursive(
    st.none() | st.booleans() | NUMBERS | ODD_TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["key", "value", "values", *FIELDS]) | ODD_TEXT, inner, max_size=3)
    ),
    max_leaves=8,
)
any_values = st.recursive(
    st.dictionaries(
        st.sampled_from(["stringValue", "boolValue", "intValue", "doubleValue", "bytesValue", "newValue"]),
        json_values,
        max_size=1,
    ),
    lambda inner: (
        st.builds(lambda v: {"arrayValue": {"values": v}}, st.lists(inner, max_size=3))
        | st.builds(
            lambda v: {"kvlistValue": {"values": [{"key": "k", "value": e} for e in v]}}, st.lists(inner)
        )
    ),
    max_leaves=5,
)


def line_of(number: int, step: object = 1, text: str = "") -> bytes:
    """Make a line as the recorder writes it, without its head; number as name."""
    attributes = {"rollout.step": step, "rollout.validate": bool(number % 2), "input.value": text}
    pieces = otlp_json.line(
        *(SCOPE, otlp_json.head_below(b"%032x" % (number % 7 + 1), b"", 257), b"%016x" % (number + 1)),
        *(b'"%d"' % number, 1, 10, 20),
        (otlp_json.attribute_list(attributes),),
    )
    return b"".join(pieces)


def assert_sound(span: Span) -> None:
    """Assert that protobuf can hold a span, and that it has the types and ranges of the SDK's own spans."""
    [sent] = protobuf.request_of([span]).resource_spans[0].scope_spans[0].spans
    for part, held in zip((span, *span.events, *span.links), (sent, *sent.events, *sent.links), strict=True):
        assert [entry.key for entry in held.attributes] == list(part.attributes)
    readable = sdk.readable(span)
    assert type(readable.name) is str
    for context in (readable.context, readable.parent):  # a link may lead nowhere, and have attributes
        assert context is None or context.is_valid
    assert 0 <= readable.start_time < 2**64
    assert 0 <= readable.end_time < 2**64
    assert isinstance(readable.kind, SpanKind)
    assert isinstance(readable.status.status_code, StatusCode)


def read(line: bytes) -> int:
    """Count the spans of a line, and assert that they are sound; 0 if it is refused."""
    try:
        spans = spans_of(line)
    except UnreadableLineError:
        return 0
    for span in spans:
        assert_sound(span)
    return len(spans)


@examples(150)
@given(where=st.sampled_from(sorted(FIELDS)), what=json_values)
def test_field_of_a_wrong_type_or_range_is_refused_or_sound(where, what):
    """A line is unreadable, or gives a span that any exporter can take."""
    span = {**FIELDS, where: what}
    assert read(orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})) in (0, 1)


@examples(150)
@given(value=any_values, place=st.sampled_from(["span", "event", "link", "resource"]))
def test_attributes_of_every_type_are_refused_or_sound(value, place):
    """Values may have wrong types, exceed 64 bits, be nested, or be of unknown types."""
    attributes = [{"key": "k", "value": value}]
    span = {**FIELDS}
    if place == "span":
        span["attributes"] = attributes
    elif place == "event":
        span["events"] = [{"timeUnixNano": "1", "attributes": attributes}]
    elif place == "link":
        span["links"] = [{"traceId": "1" * 32, "spanId": "2" * 16, "attributes": attributes}]
    of_resource = {"resource": {"attributes": attributes if place == "resource" else []}}
    assert read(orjson.dumps({"resourceSpans": [{**of_resource, "scopeSpans": [{"spans": [span]}]}]})) in (
        0,
        1,
    )


@examples(150)
@given(done=damages, step=st.integers() | st.text(max_size=4), text=st.text(max_size=30))
def test_damaged_line_is_refused_or_sound(done, step, text):
    """A cut, flipped or spliced line gives spans or one kind of error.

    It always gives a step.
    """
    line = damaged(HEAD + line_of(1, step, text), done, HEAD + line_of(2, "other"))
    read(line)
    assert isinstance(scan.step_of(line), scan.StepKey)


@pytest.mark.parametrize("depth", [10, 100, 1000, 100_000])
def test_deeply_nested_value_is_cut_or_refused(depth):
    """The depth of Python's stack does not matter."""
    value = b'{"arrayValue":{"values":[' * depth + b'{"intValue":"1"}' + b"]}}" * depth
    attribute = b'"attributes":[{"key":"k","value":%b}]' % value
    read(HEAD + line_of(1).replace(b'"attributes":[', attribute[:-1] + b",", 1))


@examples(100)
@given(
    data=st.binary(max_size=300) | st.builds(damaged, st.just(b"ORJRNL"), damages),
    segment_size=st.integers(0),
)
def test_journal_of_any_bytes_is_read(tmp_path, data, segment_size):
    """A header gives a state or none, and the owed bytes are bounded by the file."""
    path = tmp_path / "x.journal"
    for content in (
        data,
        journal.MAGIC + data,
        journal.MAGIC + data.ljust(journal.HEADER_BYTES + 100, b"\xff"),
    ):
        path.write_bytes(content)
        state = journal.read_state(path)
        if state is not None:
            assert len(journal.owed_bytes(path, state, segment_size)) <= len(content)


@examples(100)
@given(
    data=st.binary(max_size=300),
    filling=st.sampled_from([b"\x00", b"\x02", b"\xff"]),
    size=st.integers(0, 10_000),
)
def test_root_table_of_any_bytes_is_read(tmp_path, data, filling, size):
    """Only what fits a slot is a line."""
    path = tmp_path / "x.open"
    path.write_bytes(data + filling * size)
    assert all(len(line) <= MAX_LINE for line in read_open(path))


@examples(100)
@given(
    content=garbage
    | json_values.map(orjson.dumps)
    | st.builds(
        lambda key, value: orjson.dumps({"run_id": "r", "project_name": "p", "exporters": ["a"], key: value}),
        st.sampled_from(["run_id", "project_name", "exporters"]),
        json_values,
    )
)
def test_manifest_of_any_bytes_is_read(tmp_path, content):
    """A manifest and the published runs give text or nothing."""
    (tmp_path / layout.MANIFEST).write_bytes(content)
    (tmp_path / layout.TRACKERS).write_bytes(content)
    manifest = layout.read_manifest(tmp_path)
    if manifest is not None:
        assert all(
            type(text) is str for text in (manifest.run_id, manifest.project_name, *manifest.exporters)
        )
    assert all(type(text) is str for item in layout.read_trackers(tmp_path).items() for text in item)
    assert layout.node_directories(tmp_path) == [tmp_path]


class Collected(SpanExporter):
    """An exporter that counts the names of its spans."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def export(self, spans):
        self.names.update(span.name for span in spans)
        return SpanExportResult.SUCCESS

    def announce(self, roots) -> None:
        assert all(type(root.name) is str for root in roots)


@pytest.fixture
def hurried(monkeypatch):
    """Take the forwarder's pauses away."""
    set_waits(monkeypatch, idle=0.002)
    monkeypatch.setattr(delivery, "BATCH_SPANS", 7)
    monkeypatch.setattr(segments, "MAX_LINE_BYTES", LONGEST)


def forwarded(node_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Run the forwarder of a node directory; return the names of exported spans."""
    collected = Collected()
    monkeypatch.setattr(forwarder, "load", lambda name, options: collected)
    configured = dataclasses.replace(Settings(), exporters={"collected": {}}, keep=True, forwarder_linger=1e9)
    lock = ForwarderLock(node_dir)
    assert lock.acquire()
    thread = threading.Thread(target=forwarder.Forwarder(node_dir, configured, lock).run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "the forwarder does not come to an end"
    lock.close()
    report = node_report.report(node_dir, configured)
    assert report.exporters["collected"].pending == 0
    assert report.by_step is not None
    return collected.names


LINES = 12


def recorded(node_dir: Path, name: str) -> SegmentWriter:
    """Leave two segments and open trajectories, as a dead writer does."""
    writer = SegmentWriter(node_dir, {"service.name": name}, segment_bytes=2500, journal_bytes=8192)
    for number in range(LINES):
        writer.started()
        assert writer.write(line_of(number, number % 3, name * number))
        if number == LINES // 2:
            assert writer.flush(30)
    for number in (100, 101):
        writer.started()
        unfinished = line_of(number).replace(b'"endTimeUnixNano":"20"', b'"endTimeUnixNano":"0"')
        assert writer.start_trajectory({None: unfinished}.get) is not None
    writer.close(30)
    return writer


def whole_lines(node_dir: Path) -> Counter[bytes]:
    """Return the complete lines of all segments that are not too long."""
    parts = [(node_dir / name.file).read_bytes().split(b"\n")[:-1] for name in layout.segments(node_dir)]
    return Counter(line for lines in parts for line in lines if len(line) < segments.MAX_LINE_BYTES)


def delivered_of(lines: Counter[bytes]) -> Counter[str]:
    """Count the names of the spans in lines that are readable."""
    names: Counter[str] = Counter()
    for line, count in lines.items():
        try:
            names.update({span.name: count for span in spans_of(line)})
        except UnreadableLineError:
            continue
    return names


files = st.fixed_dictionaries(
    {}, optional={"segment": damages, "second": damages, "journal": damages, "open": damages}
)


@examples(20)
@given(done=files)
@example(done={"open": [("cut", 0.0001)]})
@example(done={"open": [("insert", 0.0, b"\x02\x00\x00\x00\x05\x00\x00\x00hello")]})
@example(done={"journal": [("cut", 0.0)], "segment": [("cut", 0.5)]})
@example(done={"segment": [("cut", 0.9), ("insert", 1.0, b"\n")]})
def test_whole_lines_of_a_damaged_spool_are_delivered(hurried, monkeypatch, tmp_path_factory, done):
    """The forwarder ends, and every other line is counted and in the dead-letter file."""
    node_dir = tmp_path_factory.mktemp("node")
    writer = recorded(node_dir, "one")
    recorded(node_dir, "two")
    first, *_ = mine = [name.file for name in layout.segments(node_dir) if name.writer == writer.id]
    places = {
        "segment": first,
        "second": mine[-1],
        "journal": writer.id + layout.JOURNAL_SUFFIX,
        "open": writer.id + layout.OPEN_SUFFIX,
    }
    for place, damage in done.items():
        path = node_dir / places[place]
        path.write_bytes(damaged(path.read_bytes(), damage, (node_dir / first).read_bytes()))
    before = delivered_of(whole_lines(node_dir))
    names = forwarded(node_dir, monkeypatch)
    assert before - names == Counter(), "a whole line was not delivered"
    assert names >= Counter({f"{number}": 1 for number in [*range(LINES), 100, 101]}), "the other writer's"
    rejected = node_dir / "rejected.collected.jsonl"
    set_aside = rejected.read_bytes().splitlines() if rejected.exists() else []
    tallies = ledger_reader.read_ledger(node_dir).steps["collected"].values()
    assert sum(tally.rejected for tally in tallies) == len(set_aside)
    assert all(orjson.loads(line)["reason"] for line in set_aside)


@examples(15)
@given(damage=damages, content=st.none() | garbage)
@example(damage=[], content=b"")
@example(damage=[], content=b"x" * 5000)
@example(damage=[("cut", 0.125), ("insert", 0.0078125, bytes(4))], content=None)  # "unsupported file format"
def test_damaged_ledger_stops_no_delivery(hurried, monkeypatch, tmp_path_factory, damage, content):
    """A ledger that cannot be read is replaced.

    Lines in segments are delivered again.
    """
    node_dir = tmp_path_factory.mktemp("node")
    recorded(node_dir, "one")
    path = node_dir / ledger_reader.FILE
    with closing(ledger.Ledger(node_dir)) as kept:
        kept.advance(
            "collected", {"1-0000000000000000.000001": 5}, {scan.StepKey("1", False): ledger_reader.Tally(1)}
        )
    path.write_bytes(damaged(path.read_bytes(), damage) if content is None else content)
    for suffix in ("-wal", "-shm"):
        path.with_name(ledger_reader.FILE + suffix).unlink(missing_ok=True)
    names = forwarded(node_dir, monkeypatch)
    assert names == Counter({f"{number}": 1 for number in [*range(LINES), 100, 101]})


def test_unreadable_segment_delays_no_other(hurried, monkeypatch, tmp_path, caplog):
    """One error is logged, and the report can be taken."""
    recorded(tmp_path, "one")
    (tmp_path / "1-0000000000000000.000001.jsonl").mkdir()
    collected = Collected()
    delivering = delivery.Delivery("collected", collected, tmp_path)
    delivering.start()
    wait_for(lambda: sum(collected.names.values()) == LINES, what="delivery of the others")
    delivering.stop(30)
    assert len([r for r in caplog.records if "left alone" in r.message]) == 1
    configured = dataclasses.replace(Settings(), exporters={"collected": {}})
    assert node_report.report(tmp_path, configured).exporters["collected"].delivered == LINES


def test_line_without_end_is_not_read_into_memory(hurried, monkeypatch, tmp_path):
    """Its beginning goes to the dead-letter file, and later lines arrive."""
    monkeypatch.setattr(segments, "MAX_LINE_BYTES", 4096)
    monkeypatch.setattr(segments, "READ_BYTES", 100)
    (tmp_path / "run.json").write_text("{}")
    segment = tmp_path / "1-0000000000000000.000001.jsonl"
    whole = [HEAD + line_of(number) for number in range(3)]
    segment.write_bytes(whole[0] + b"\x00" * 50_000 + b"\n" + whole[1] + b"y" * 4096 + b"\n" + whole[2])
    assert forwarded(tmp_path, monkeypatch) == Counter({"0": 1, "1": 1, "2": 1})
    entries = [
        orjson.loads(line) for line in (tmp_path / "rejected.collected.jsonl").read_bytes().splitlines()
    ]
    assert [len(entry["line"]) for entry in entries] == [100, 100]


def test_recorded_span_of_any_values_is_readable(tmp_path):
    """An application may set any value of any type."""
    writer = SegmentWriter(tmp_path, {"service.name": "s"}, segment_bytes=1 << 30)
    tracer = RecordingTracerProvider(writer).get_tracer("scope")
    anything = spans.value | st.builds(object) | st.integers()

    @examples(60)
    @given(
        name=anything,
        given_=st.dictionaries(spans.text | st.integers() | st.none(), anything, max_size=3),
        links=st.lists(st.tuples(spans.context, spans.attributes), max_size=2),
        said=anything,
    )
    def record(name, given_, links, said):
        span = tracer.start_span(name)
        for key, entry in given_.items():
            span.set_attribute(key, entry)
        span.add_event(name, given_)
        for context, attributes in links:
            span.add_link(context, attributes)
        span.set_status(StatusCode.ERROR, said)
        span.update_name(name)
        span.end()

    record()
    writer.close(30)
    lines = whole_lines(tmp_path)
    counts = writer.counts()
    assert counts.recorded + sum(counts.drops.values()) == counts.started
    assert lines.total() == counts.recorded > counts.started / 2
    for line in lines:
        assert read(line) == 1
