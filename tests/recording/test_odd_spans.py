"""Spans of other libraries are recorded whatever values they hold; nothing raises, nothing else is lost."""

import asyncio
import enum
import logging
import math
from collections.abc import Mapping

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags

import otel_rollout
from otel_rollout import rollout_trace_attr
from otel_rollout.otlp.writer import MAX_DEPTH
from otel_rollout.record import runtime
from otel_rollout.record.recording import joined_span, joining
from otel_rollout.record.recording.provider import RecordingTracer, RecordingTracerProvider
from otel_rollout.record.recording.span import MAX_ATTRIBUTES, MAX_EVENTS, MAX_LINKS
from tests.sdk_spans import spans_of
from tests.spool_reader import segment_lines, segments_below

NOW = 1_700_000_000_000_000_000


class Hostile:
    def __str__(self):
        raise RuntimeError("no")


class HostileMapping(Mapping):
    def __getitem__(self, key):
        raise ZeroDivisionError

    def __iter__(self):
        return iter("a")

    def __len__(self):
        return 1


class Color(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


def nested(depth: int) -> list:
    outer: list = []
    inner = outer
    for _ in range(depth):
        inner.append([])
        inner = inner[0]
    return outer


CYCLE: dict = {}
CYCLE["self"] = CYCLE

READABLE = {
    "text": ("界 🎲", "界 🎲"),
    "lone surrogate": ("a\ud800b", "a?b"),
    "zero byte": ("a\0b", "a\0b"),
    "bytes": (b"\xff\x00", b"\xff\x00"),
    "view of bytes": (memoryview(b"ab"), b"ab"),
    "big int": (2**63 - 1, 2**63 - 1),
    "bigger int": (2**63, str(2**63)),
    "huge int": (1 << 40_000, hex(1 << 40_000)),
    "infinity": (-math.inf, -math.inf),
    "mixed list": ([1, "a", None, 2.5, True, b"x", [1]], [1, "a", None, 2.5, True, b"x", [1]]),
    "nested mapping": ({"a": {"b": [1, None]}}, {"a": {"b": [1, None]}}),
    "keys that are no text": ({1: 2, None: 3, (1, 2): 4}, {"1": 2, "None": 3, "(1, 2)": 4}),
    "keys of one text": ({1: 2, "1": 3}, {"1": 3}),
    "numpy int": (np.int64(7), 7),
    "numpy float": (np.float32(0.5), 0.5),
    "numpy ints": ([np.int64(7), np.int32(8)], [7, 8]),
    "enum": (Color.RED, "Color.RED"),
    "enum of ints": (Number.ONE, 1),
    "set": ({1}, "{1}"),
    "cycle": (CYCLE, None),
    "empty list": ([], []),
    "no value": (None, None),
}
"""Values that are recorded: as given, and as read back; None where only the span itself counts."""
UNREADABLE = {
    "hostile": Hostile(),
    "hostile in a list": [Hostile()],
    "hostile mapping": HostileMapping(),
    "endlessly nested": nested(100_000),
}
"""Values that cannot be encoded."""


def recording_tracer():
    """Return a tracer of our own provider."""
    return RecordingTracerProvider(runtime.current().writer).get_tracer("library", "1")


def joined_tracer():
    """Return the tracer that OpenTelemetry's API hands out while nobody has set a provider."""
    joining.install()
    return trace.ProxyTracerProvider().get_tracer("library", "1")


@pytest.fixture(params=[recording_tracer, joined_tracer], ids=["our provider", "joined"])
def our_tracer(request, tracing):
    """Return a tracer of another library, whose spans we record ourselves."""
    return request.param()


@pytest.fixture(params=[recording_tracer, joined_tracer, None], ids=["our provider", "joined", "application"])
def tracer(request, tracing, monkeypatch):
    """Return a tracer of another library, whose spans reach the spool in any way."""
    if request.param is not None:
        return request.param()
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with rollout_trace_attr():  # joins the provider
        pass
    return provider.get_tracer("library", "1")


@pytest.fixture
def of_library(recorded, tmp_path):
    """Return a function that reads the library's spans, and checks that the forwarder can read them, too."""

    def read():
        spans = [span for span in recorded() if span.scope == "library"]
        for path in segments_below(tmp_path / "spool"):
            for line in segment_lines(path):
                assert spans_of(line)
        report = otel_rollout.status()
        assert not report.dropped
        assert report.other_scopes.get("library", 0) == len(spans)
        return spans

    return read


def lines_of(caplog) -> list[str]:
    return [record.message for record in caplog.records if record.name == "otel_rollout"]


@pytest.mark.parametrize("value", READABLE)
def test_odd_value_is_recorded_wherever_a_span_holds_it(our_tracer, of_library, value):
    """An attribute, an event and a link hold the value, and lose nothing beside it."""
    given, expected = READABLE[value]
    attributes = {"before": 1, "odd": given, "after": 2}
    with rollout_trace_attr(step=1):
        span = our_tracer.start_span(
            "odd", attributes=attributes, links=[Link(SpanContext(1, 2, False), attributes)]
        )
        span.add_event("event", attributes)
        span.set_attribute("later", given)
        span.end()
    (found,) = of_library()
    assert (found.attributes["before"], found.attributes["after"]) == (1, 2)
    assert (len(found.span.events), len(found.span.links)) == (1, 1)
    assert found.span.dropped_attributes_count == 0
    if expected is not None:
        assert found.attributes["odd"] == found.attributes["later"] == expected


def test_nan_is_recorded(our_tracer, of_library):
    """NaN is written as OTLP/JSON writes it."""
    with rollout_trace_attr(step=1):
        our_tracer.start_span("odd", attributes={"odd": math.nan, "list": [math.nan]}).end()
    (found,) = of_library()
    assert math.isnan(found.attributes["odd"])
    assert math.isnan(found.attributes["list"][0])


@pytest.mark.parametrize("value", UNREADABLE)
def test_value_that_fails_is_dropped_alone_and_said_once(our_tracer, of_library, caplog, value):
    """Only the attribute is lost, also in an event and in a link; it is counted, and one line names it."""
    attributes = {"before": 1, "odd": UNREADABLE[value], "after": 2}
    with rollout_trace_attr(step=1), caplog.at_level(logging.WARNING):
        for _ in range(3):
            span = our_tracer.start_span(
                "odd", attributes=attributes, links=[Link(SpanContext(1, 2, False), attributes)]
            )
            span.add_event("event", attributes)
            span.end()
    for found in of_library():
        assert (found.attributes["before"], found.attributes["after"]) == (1, 2)
        assert found.span.dropped_attributes_count == 1
        for part in (found.span.events[0], found.span.links[0]):
            assert [entry.key for entry in part.attributes] == ["before", "after"]
            assert part.dropped_attributes_count == 1
    (said,) = lines_of(caplog)
    assert "is recorded without its attribute 'odd', which raised" in said


def test_deep_value_stays_within_what_receivers_read(our_tracer, of_library):
    """Lists deeper than the limit become text, because protobuf refuses deep messages."""
    with rollout_trace_attr(step=1):
        our_tracer.start_span("odd", attributes={"deep": nested(60)}).end()
    (found,) = of_library()
    value = found.attributes["deep"]
    for _ in range(MAX_DEPTH):
        (value,) = value
    assert isinstance(value, str)
    assert type(found.span).FromString(found.span.SerializeToString()) == found.span


def test_a_thousand_attributes_are_recorded(our_tracer, of_library, caplog):
    """No attribute of a thousand is lost, and nothing is said."""
    with rollout_trace_attr(step=1):
        our_tracer.start_span("many", attributes={f"a{n}": n for n in range(1000)}).end()
    (found,) = of_library()
    assert {f"a{n}": n for n in range(1000)}.items() <= found.attributes.items()
    assert lines_of(caplog) == []


def test_parts_beyond_the_limits_are_counted_and_said_once(our_tracer, of_library, caplog):
    """Of 20,000 attributes, events and links the first are kept; one line per kind has span and limit."""
    is_joined = not isinstance(our_tracer, RecordingTracer)
    attributes = joined_span.MAX_ATTRIBUTES if is_joined else MAX_ATTRIBUTES
    links = [Link(SpanContext(1, n, False)) for n in range(1, 20_001)]
    with rollout_trace_attr(step=1):
        for _ in range(2):
            span = our_tracer.start_span("many", links=links)
            for n in range(20_000):
                span.set_attribute(f"a{n}", n)
                span.add_event("event", {"n": n})
            span.end()
    for found in of_library():
        assert found.span.dropped_attributes_count == 20_000 - attributes
        assert found.span.dropped_events_count == 20_000 - MAX_EVENTS
        assert found.span.dropped_links_count == 20_000 - MAX_LINKS
    said = lines_of(caplog)
    assert len(said) == 3
    for limit, part in ((attributes, "attributes"), (MAX_EVENTS, "events"), (MAX_LINKS, "links")):
        assert any(f"the span 'many' has more than {limit} {part}" in line for line in said)


@pytest.mark.parametrize("time", [-5, 10**30, math.nan, math.inf, 2**63])
def test_time_that_is_none_is_replaced_by_the_present(tracer, of_library, caplog, time):
    """Start, event and end have times of today, which backends can show."""
    with rollout_trace_attr(step=1):
        span = tracer.start_span("odd", start_time=time)
        span.add_event("event", timestamp=time)
        span.end(end_time=time)
    (found,) = of_library()
    for found_time in (
        found.span.start_time_unix_nano,
        found.span.end_time_unix_nano,
        found.span.events[0].time_unix_nano,
    ):
        assert NOW < found_time < 2 * NOW
    assert sum("not in ns since 1970" in line for line in lines_of(caplog)) == 1


def test_fractional_time_is_rounded(tracer, of_library):
    """`time.time() * 1e9` is a float, which some libraries pass."""
    with rollout_trace_attr(step=1):
        span = tracer.start_span("odd", start_time=NOW + 0.5)
        span.end(end_time=float(NOW))
    (found,) = of_library()
    assert found.span.start_time_unix_nano == found.span.end_time_unix_nano == int(float(NOW))


def test_end_before_start_is_kept(tracer, of_library):
    """Times that a library gave are recorded as given."""
    with rollout_trace_attr(step=1):
        tracer.start_span("odd", start_time=NOW).end(end_time=NOW - 1000)
    (found,) = of_library()
    assert found.span.start_time_unix_nano - found.span.end_time_unix_nano == 1000


def test_calls_after_the_end_change_nothing(tracer, of_library):
    """The span is recorded once, as it was at its first end."""
    with rollout_trace_attr(step=1):
        span = tracer.start_span("ended")
        span.end(NOW)
        span.set_attribute("late", 1)
        span.add_event("late")
        span.add_link(SpanContext(1, 2, False))
        span.set_status(StatusCode.ERROR)
        span.update_name("late")
        span.record_exception(ValueError("late"))
        span.end()
    (found,) = of_library()
    assert (found.name, len(found.span.events), len(found.span.links)) == ("ended", 0, 0)
    assert "late" not in found.attributes


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class EndlessError(Exception):
    def __str__(self):
        return str(self)


@pytest.mark.parametrize("error", [SilentError(), EndlessError(), ValueError("a\ud800" * 1_000_000)])
def test_exception_leaves_the_block_as_it_was_raised(our_tracer, of_library, error):
    """An exception whose text cannot be read reaches the caller, and the span has its type and status."""
    with (
        rollout_trace_attr(step=1),
        pytest.raises(type(error)) as raised,
        our_tracer.start_as_current_span("fails"),
    ):
        raise error
    assert raised.value is error
    assert error.__context__ is None
    (found,) = of_library()
    assert found.span.status.code == 2
    assert type(error).__name__ in found.span.status.message
    assert [event.name for event in found.span.events] == ["exception"]


def test_block_records_only_the_exceptions_that_it_is_told_to(our_tracer, of_library):
    """`record_exception`, `set_status_on_exception` and `end_on_exit` mean what the API says."""
    with rollout_trace_attr(step=1):
        for record, status in ((True, False), (False, True), (False, False)):
            with (
                pytest.raises(KeyError),
                our_tracer.start_as_current_span(
                    "fails", record_exception=record, set_status_on_exception=status
                ),
            ):
                raise KeyError("k")
        with our_tracer.start_as_current_span("open", end_on_exit=False) as span:
            pass
        assert span.is_recording()
        span.end()
        with pytest.raises(KeyboardInterrupt), our_tracer.start_as_current_span("interrupted"):
            raise KeyboardInterrupt
    found = [(len(span.span.events), span.span.status.code) for span in of_library()]
    assert found == [(1, 0), (0, 2), (0, 0), (0, 0), (0, 0)]


def test_decorated_coroutine_is_timed_until_it_returns(our_tracer, of_library):
    """`start_as_current_span` decorates functions and coroutines, as the API's does."""

    @our_tracer.start_as_current_span("decorated")
    async def slow():
        await asyncio.sleep(0.02)
        return trace.get_current_span()

    with rollout_trace_attr(step=1):
        current = asyncio.run(slow())
    (found,) = of_library()
    assert found.span.span_id == current.get_span_context().span_id.to_bytes(8, "big")
    assert found.span.end_time_unix_nano - found.span.start_time_unix_nano >= 15_000_000


ODD_ARGUMENTS = (None, 1, b"x", [1], {"a": 1}, Hostile(), np.arange(3), 1 << 40_000, object, iter("abc"))


@pytest.mark.parametrize("odd", range(len(ODD_ARGUMENTS)))
def test_arguments_of_wrong_types_raise_nothing(our_tracer, of_library, recorded, odd):
    """Whatever a library passes where, the span and what else it holds are recorded."""
    value = ODD_ARGUMENTS[odd]
    with rollout_trace_attr(step=1):
        RecordingTracerProvider(runtime.current().writer).get_tracer(value, value, value, value).start_span(
            "scope"
        ).end()
        span = our_tracer.start_span(value, None, value, value, value, value)
        span.set_attribute("kept", 1)
        span.set_attribute(value, 1)
        span.set_attributes(value)
        span.add_event(value, value, value)
        span.add_link(value, value)
        span.record_exception(value, value, value)
        span.set_status(StatusCode.ERROR, value)
        span.end(value)
    (found,) = of_library()
    assert found.attributes["kept"] == 1
    assert found.span.status.code == 2
    assert found.span.kind == 1
    assert len(recorded()) == 3


def test_links_to_contexts_beyond_their_bits_are_readable(tracer, of_library):
    """Ids and flags are cut to their bits, because one unreadable link would cost the whole span."""
    odd = SpanContext(1 << 130, -5, False, TraceFlags(1 << 40))
    with rollout_trace_attr(step=1):
        tracer.start_span("odd", links=[Link(odd, {"kept": 1})]).end()
    (found,) = of_library()
    assert [entry.key for entry in found.span.links[0].attributes] == ["kept"]


def test_odd_values_through_the_applications_provider_are_recorded(tracing, monkeypatch, of_library):
    """What the SDK accepts reaches the spool, and one attribute that fails costs no other."""
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    accepted = {name: value for name, (value, _) in READABLE.items() if name not in ("cycle", "huge int")}
    with rollout_trace_attr(step=1):
        span = provider.get_tracer("library").start_span("odd", attributes=accepted, kind=SpanKind.CLIENT)
        span.add_event("event", {"n": 1})
        span.end()
    (found,) = of_library()
    assert found.attributes["text"] == "界 🎲"
    assert found.attributes["lone surrogate"] == "a?b"
    assert found.span.kind == 3


@pytest.mark.parametrize("name", ["gen_ai.operation.name", "openinference.span.kind", "llm.request.type"])
def test_model_call_with_odd_facts_is_recorded(our_tracer, of_library, name):
    """Attributes that tell model calls apart may have values of any type, too."""
    with rollout_trace_attr(step=1):
        for value in (["chat"], np.arange(3), 5, {"a": 1}, Hostile()):
            our_tracer.start_span("call", attributes={name: value, "kept": 1}).end()
    assert [span.attributes["kept"] for span in of_library()] == [1] * 5
