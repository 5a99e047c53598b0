"""What travels between processes: the span in W3C form, the identity with its types."""

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.propagation import carrier
from otel_rollout.recording.identity import NO_IDENTITY, Identity, identity_in, with_identity

SPAN = trace.SpanContext(0xABC, 0xDEF, False, trace.TraceFlags(1), trace.TraceState([("vendor", "x")]))


def inside(identity: Identity) -> dict[str, str]:
    """The carrier of a context with ``SPAN`` and an identity."""
    context = trace.set_span_in_context(trace.NonRecordingSpan(SPAN))
    token = otel_context.attach(with_identity(identity, context))
    try:
        found = carrier.inject()
    finally:
        otel_context.detach(token)
    assert found is not None
    return found


def test_without_a_span_nothing_travels():
    """Outside any trajectory there is no carrier."""
    assert carrier.inject() is None


def test_span_and_state_arrive_as_remote_parent():
    """Ids, flags and tracestate are those that were sent, and marked as remote."""
    context = carrier.extract(inside(NO_IDENTITY))
    found = trace.get_current_span(context).get_span_context()
    assert (found.trace_id, found.span_id, found.trace_flags, found.is_remote) == (0xABC, 0xDEF, 1, True)
    assert found.trace_state.to_header() == "vendor=x"


@pytest.mark.parametrize("propagators", ["none", "baggage", "b3"])
def test_identity_arrives_with_its_types(propagators, monkeypatch):
    """7 stays a number and False a boolean, whatever propagators the application has."""
    monkeypatch.setenv("OTEL_PROPAGATORS", propagators)
    attributes = {"rollout.step": 7, "rollout.validate": False, "rollout.sample_index": "ü-1", "x": 0.5}
    found = identity_in(carrier.extract(inside(Identity(attributes))))
    assert found.attributes == attributes
    assert [type(value) for value in found.attributes.values()] == [int, bool, str, float]


def test_a_carrier_is_ascii_text():
    """HTTP headers and every RPC can hold it."""
    assert all(value.isascii() for value in inside(Identity({"rollout.sample_index": "ü\n"})).values())


def test_too_large_an_identity_is_cut_with_a_warning(caplog):
    """What trajectories are found by comes first; long values are cut, and what does not fit is missing."""
    attributes = {f"note.{n}": "x" * 300 for n in range(40)}
    identity = Identity({**attributes, "rollout.sample_index": "y" * 5000, "rollout.step": 3})
    sent = inside(identity)
    assert len(sent[carrier.IDENTITY_KEY]) <= carrier.MAX_IDENTITY_BYTES
    found = identity_in(carrier.extract(sent)).attributes
    assert found["rollout.step"] == 3
    assert found["rollout.sample_index"] == "y" * 256 + "…"
    assert 0 < len(found) < 42
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    inside(identity)
    assert len(caplog.records) == 1


@pytest.mark.internal_errors
def test_an_unreadable_identity_leaves_the_span(caplog):
    """A carrier whose identity cannot be read yields the span alone."""
    context = carrier.extract(inside(Identity({"rollout.step": 1})) | {carrier.IDENTITY_KEY: "{"})
    assert trace.get_current_span(context).get_span_context().trace_id == 0xABC
    assert identity_in(context) is NO_IDENTITY
    assert "internal error" in caplog.text


@pytest.mark.parametrize("encoded", ["[1]", '"text"', "{" + " " * 5000 + "}"])
def test_an_identity_that_is_none_is_ignored(encoded):
    """Entries of the right name that we did not write do no harm."""
    assert identity_in(carrier.extract({carrier.IDENTITY_KEY: encoded})) is NO_IDENTITY


def test_not_recorded_travels(recorded):
    """What a receiver does for a sampled-out trajectory is not recorded there either."""
    with rollout_trace_attr(step=1, trace=False):
        sent = carrier.inject()
    assert sent is not None
    assert sent["traceparent"].endswith("-00")
    assert carrier.IDENTITY_KEY not in sent
    token = otel_context.attach(carrier.extract(sent))
    rollout_trace_op(lambda: None)()
    otel_context.detach(token)
    assert recorded() == []


def test_a_span_below_a_carrier_has_parent_and_identity(recorded):
    """An operation in the receiver is recorded below the sender's span, as part of its trajectory."""
    with rollout_trace_attr(sample_index=5, step=1) as trajectory:
        sent = carrier.inject()
    token = otel_context.attach(carrier.extract(sent or {}))
    rollout_trace_op(name="remote")(lambda: None)()
    otel_context.detach(token)
    root, remote = recorded()
    assert remote.span.trace_id.hex() == trajectory.trace_id
    assert remote.span.parent_span_id == root.span.span_id
    assert remote.attributes["rollout.sample_index"] == 5


@pytest.mark.internal_errors
def test_a_span_that_raises_is_no_span(caplog):
    """A broken span of somebody else's costs the context and nothing more."""

    class Broken(trace.NonRecordingSpan):
        def get_span_context(self) -> trace.SpanContext:
            raise RuntimeError("broken")

    token = otel_context.attach(trace.set_span_in_context(Broken(SPAN)))
    try:
        assert carrier.inject() is None
    finally:
        otel_context.detach(token)
