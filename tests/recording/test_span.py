"""The recording span implements the whole of OpenTelemetry's API."""

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_rollout.record import runtime
from otel_rollout.record.recording import span as span_module


@pytest.fixture
def tracer(tracing):
    return runtime.current().tracer


def test_spans_started_through_the_api_nest(tracer, recorded):
    """The spans have kind, times and attributes."""
    with tracer.start_as_current_span("parent", kind=SpanKind.CLIENT, start_time=5) as parent:
        assert trace.get_current_span() is parent
        with tracer.start_as_current_span("child", attributes={"a": 1, "b": [1.5, 2.5]}):
            pass
    child, above = recorded()
    assert (child.name, above.name) == ("child", "parent")
    assert child.span.parent_span_id == above.span.span_id
    assert child.attributes == {"a": 1, "b": [1.5, 2.5]}
    assert (above.span.kind, above.span.start_time_unix_nano) == (3, 5)


def test_remote_parent_is_the_parent(tracer, recorded):
    """The line has the flag of a remote parent."""
    remote = SpanContext(0xABC, 0xDEF, True, TraceFlags(1), trace.TraceState([("k", "v")]))
    context = trace.set_span_in_context(NonRecordingSpan(remote))
    tracer.start_span("local", context).end()
    (local,) = recorded()
    assert local.span.trace_id.hex() == f"{0xABC:032x}"
    assert local.span.parent_span_id.hex() == f"{0xDEF:016x}"
    assert local.span.flags == 0x303
    assert local.span.trace_state == "k=v"


def test_span_below_an_unsampled_parent_is_not_recorded(tracer, recorded):
    """The unrecorded span's context keeps the unsampled flag."""
    remote = SpanContext(0xABC, 0xDEF, True, TraceFlags(0))
    child = tracer.start_span("c", trace.set_span_in_context(NonRecordingSpan(remote)))
    child.end()
    assert not child.is_recording()
    assert child.get_span_context().trace_id == 0xABC
    assert not child.get_span_context().trace_flags.sampled
    assert recorded() == []


def test_status_follows_the_specification(tracer, recorded):
    """OK is final, UNSET is ignored, and only an error has a description."""
    for name, settings in {
        "ok is final": [StatusCode.OK, StatusCode.ERROR],
        "unset is ignored": [StatusCode.ERROR, StatusCode.UNSET],
        "described": [Status(StatusCode.ERROR, "why")],
    }.items():
        span = tracer.start_span(name)
        for status in settings:
            span.set_status(status, "text" if isinstance(status, StatusCode) else None)
        span.end()
    assert [(s.span.status.code, s.span.status.message) for s in recorded()] == [
        (1, ""),
        (2, "text"),
        (2, "why"),
    ]


def test_links_events_and_a_new_name_are_recorded(tracer, recorded):
    """Links may be given at the start or later."""
    other = SpanContext(1, 2, False, TraceFlags(1))
    span = tracer.start_span("old", links=[Link(other, {"why": "a"})])
    span.add_link(other)
    span.add_event("e", {"n": 1}, timestamp=9)
    span.update_name("new")
    span.end(end_time=11)
    (found,) = recorded()
    assert (found.name, found.span.end_time_unix_nano) == ("new", 11)
    assert len(found.span.links) == 2
    assert (found.span.events[0].name, found.span.events[0].time_unix_nano) == ("e", 9)


def test_event_of_a_signal_handler_during_the_first_event_is_kept(tracer, recorded, monkeypatch):
    """The event of another thread is kept, too."""
    make = span_module.Details

    def interrupted():
        monkeypatch.setattr(span_module, "Details", make)
        span.add_event("handler's")
        return make()

    span = tracer.start_span("s")
    monkeypatch.setattr(span_module, "Details", interrupted)
    span.add_event("own")
    span.end()
    (found,) = recorded()
    assert [event.name for event in found.span.events] == ["handler's", "own"]


def test_ended_span_releases_its_attributes_and_events(tracer):
    """A task started inside keeps the span as long as it runs."""
    span = tracer.start_span("s")
    span.set_attribute("k", "held")
    span.add_event("held")
    span.end()
    assert not span.encoded
    assert not any(isinstance(held, span_module.Details) for held in vars(span).values())


def test_ended_span_ignores_further_calls(tracer, recorded):
    """Every call is accepted."""
    span = tracer.start_span("once")
    span.end()
    span.set_attribute("late", 1)
    span.add_event("late")
    span.set_status(StatusCode.ERROR)
    span.update_name("late")
    span.end()
    (found,) = recorded()
    assert (found.name, found.attributes, found.span.status.code) == ("once", {}, 0)
    assert not span.is_recording()


def test_exception_that_leaves_the_block_is_recorded(tracer, recorded):
    """The span has its type, message and stack."""
    with pytest.raises(KeyError), tracer.start_span("s"):
        raise KeyError("k")
    (found,) = recorded()
    attributes = {a.key: a.value.string_value for a in found.span.events[0].attributes}
    assert attributes["exception.type"] == "KeyError"
    assert "test_span.py" in attributes["exception.stacktrace"]


def test_attributes_events_and_links_beyond_the_limits_are_counted(tracer, recorded, monkeypatch):
    """A span that is written to without end stays bounded."""
    monkeypatch.setattr(span_module, "MAX_ATTRIBUTES", 2)
    monkeypatch.setattr(span_module, "MAX_EVENTS", 1)
    monkeypatch.setattr(span_module, "MAX_LINKS", 1)
    span = tracer.start_span("s")
    for n in range(4):
        span.set_attribute(f"a{n}", n)
        span.add_event("e")
        span.add_link(SpanContext(1, 2, False))
    span.set_attribute("a0", "again")
    span.end()
    (found,) = recorded()
    assert found.attributes == {"a0": "again", "a1": 1}
    assert (
        found.span.dropped_attributes_count,
        found.span.dropped_events_count,
        found.span.dropped_links_count,
    ) == (2, 3, 3)


def test_exception_whose_str_raises_is_recorded(tracer, recorded):
    """The span ends nevertheless."""

    class BadError(Exception):
        def __str__(self):
            raise RuntimeError("broken")

    span = tracer.start_span("s")
    span.record_exception(BadError())
    span.end()
    assert "could not be read" in str(recorded()[0].span.events[0])


def test_context_is_restored_after_the_block(tracer, recorded):
    """After the block the context is as before."""
    before = otel_context.get_current()
    with tracer.start_as_current_span("s"):
        pass
    assert otel_context.get_current() == before


class Hostile:
    def __str__(self):
        raise RuntimeError("no")


def test_invalid_arguments_raise_nothing(tracer, recorded):
    """Values that fail when they are encoded, and wrong types, are left out."""
    span = tracer.start_span("s")
    span.set_attribute("bad", Hostile())
    span.set_attribute(1, "numeric key")
    span.set_attributes(None)
    span.add_event("e", {"bad": Hostile()})
    span.add_link(None)
    span.set_status("ERROR")
    span.record_exception(None)
    span.end()
    assert recorded()[0].attributes == {"1": "numeric key"}


@pytest.mark.parametrize(
    ("call", "dropped"),
    [
        (lambda span: span.set_attribute("bad", Hostile()), (1, 0, 0)),
        (lambda span: span.set_attributes(None), (1, 0, 0)),
        (lambda span: span.add_event("e", {"bad": Hostile()}), (0, 0, 0)),  # the event counts it
        (lambda span: span.record_exception(None), (0, 1, 0)),
        (lambda span: span.add_link(None), (0, 0, 1)),
        (lambda span: span.update_name(Hostile()), (0, 0, 0)),
        (lambda span: span.set_status("ERROR"), (0, 0, 0)),
    ],
)
def test_failing_call_is_counted_as_what_it_adds(tracer, recorded, call, dropped):
    """A dropped attribute, event or link is counted as such.

    A name or a status is not counted.
    """
    span = tracer.start_span("s")
    call(span)
    span.end()
    (found,) = recorded()
    counts = (
        found.span.dropped_attributes_count,
        found.span.dropped_events_count,
        found.span.dropped_links_count,
    )
    assert counts == dropped


def test_huge_exception_is_cut_in_the_middle(tracer, recorded):
    """Beginning and end of its text are recorded."""
    span = tracer.start_span("s")
    span.fail(ValueError("a" * 1_000_000 + "z"))
    span.end()
    (found,) = recorded()
    assert len(found.span.SerializeToString()) < 300_000
    assert found.span.status.message.endswith("z")
