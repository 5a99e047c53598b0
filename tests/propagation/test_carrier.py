"""Carriers: the span as W3C Trace Context, the identity with its types."""

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.propagation import carrier
from otel_rollout.record.recording.identity import NO_IDENTITY, Identity, identity_in, with_identity

SPAN = trace.SpanContext(0xABC, 0xDEF, False, trace.TraceFlags(1), trace.TraceState([("vendor", "x")]))


def carrier_of(identity: Identity) -> dict[str, str]:
    """Return the carrier of a context with ``SPAN`` and an identity."""
    context = trace.set_span_in_context(trace.NonRecordingSpan(SPAN))
    token = otel_context.attach(with_identity(identity, context))
    try:
        found = carrier.inject()
    finally:
        otel_context.detach(token)
    assert found is not None
    return found


def test_context_without_span_has_no_carrier():
    """Outside any trajectory nothing is carried."""
    assert carrier.inject() is None


def test_extracted_span_is_remote_with_ids_flags_and_tracestate():
    """Ids, flags and tracestate are those that were injected."""
    context = carrier.extract(carrier_of(NO_IDENTITY))
    found = trace.get_current_span(context).get_span_context()
    assert (found.trace_id, found.span_id, found.trace_flags, found.is_remote) == (0xABC, 0xDEF, 1, True)
    assert found.trace_state.to_header() == "vendor=x"


@pytest.mark.parametrize("propagators", ["none", "baggage", "b3"])
def test_identity_keeps_its_types_whatever_propagators_are_set(propagators, monkeypatch):
    """7 stays a number and False a boolean."""
    monkeypatch.setenv("OTEL_PROPAGATORS", propagators)
    attributes = {"rollout.step": 7, "rollout.validate": False, "rollout.sample_index": "ü-1", "x": 0.5}
    found = identity_in(carrier.extract(carrier_of(Identity(attributes))))
    assert found.attributes == attributes
    assert [type(value) for value in found.attributes.values()] == [int, bool, str, float]


def test_carrier_is_ascii_text():
    """HTTP headers and any RPC can contain a carrier."""
    assert all(value.isascii() for value in carrier_of(Identity({"rollout.sample_index": "ü\n"})).values())


def test_oversized_identity_is_shortened_with_one_warning(caplog):
    """Essential attributes stay, and long values are cut.

    Attributes beyond the limit are missing.
    """
    attributes = {f"note.{n}": "x" * 300 for n in range(40)}
    identity = Identity({**attributes, "rollout.sample_index": "y" * 5000, "rollout.step": 3})
    sent = carrier_of(identity)
    assert len(sent[carrier.IDENTITY_KEY]) <= carrier.MAX_IDENTITY_BYTES
    found = identity_in(carrier.extract(sent)).attributes
    assert found["rollout.step"] == 3
    assert found["rollout.sample_index"] == "y" * 256 + "…"
    assert 0 < len(found) < 42
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    carrier_of(identity)
    assert len(caplog.records) == 1


@pytest.mark.internal_errors
def test_unreadable_identity_leaves_the_span(caplog):
    """A carrier whose identity cannot be read yields the span alone."""
    context = carrier.extract(carrier_of(Identity({"rollout.step": 1})) | {carrier.IDENTITY_KEY: "{"})
    assert trace.get_current_span(context).get_span_context().trace_id == 0xABC
    assert identity_in(context) is NO_IDENTITY
    assert "internal error" in caplog.text


@pytest.mark.parametrize("encoded", ["[1]", '"text"', "{" + " " * 5000 + "}"])
def test_identity_of_another_format_is_ignored(encoded):
    """An entry that this package did not write causes no error."""
    assert identity_in(carrier.extract({carrier.IDENTITY_KEY: encoded})) is NO_IDENTITY


def test_unrecorded_span_leaves_operations_of_the_receiver_unrecorded(recorded):
    """A trajectory that is sampled out has no spans in other processes."""
    with rollout_trace_attr(step=1, trace=False):
        sent = carrier.inject()
    assert sent is not None
    assert sent["traceparent"].endswith("-00")
    assert carrier.IDENTITY_KEY not in sent
    token = otel_context.attach(carrier.extract(sent))
    rollout_trace_op(lambda: None)()
    otel_context.detach(token)
    assert recorded() == []


def test_operation_in_extracted_context_has_parent_and_identity(recorded):
    """The receiver's operation is a child of the sender's span, in its trajectory."""
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
def test_span_that_raises_has_no_carrier(caplog):
    """Another library's broken span costs the context and raises nothing."""

    class Broken(trace.NonRecordingSpan):
        def get_span_context(self) -> trace.SpanContext:
            raise RuntimeError("broken")

    token = otel_context.attach(trace.set_span_in_context(Broken(SPAN)))
    try:
        assert carrier.inject() is None
    finally:
        otel_context.detach(token)
