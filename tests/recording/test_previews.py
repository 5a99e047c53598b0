"""A trajectory's root shows the input and output of other libraries, in whatever vocabulary they are."""

from __future__ import annotations

import json

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.recording import joining

QUESTION, ANSWER = "3+4?", "7"
ASKED = json.dumps([{"role": "user", "parts": [{"type": "text", "content": QUESTION}]}])
ANSWERED = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": ANSWER}]}])
ATTRIBUTES = {"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWERED}
EVENTS = (
    ("gen_ai.user.message", {"gen_ai.event.content": json.dumps({"content": QUESTION})}),
    ("gen_ai.choice", {"gen_ai.event.content": json.dumps({"index": 0, "message": {"content": ANSWER}})}),
)
DETAILS = (("gen_ai.client.inference.operation.details", ATTRIBUTES),)
FORMS = {"attributes": (ATTRIBUTES, ()), "events": ({}, EVENTS), "details": ({}, DETAILS)}
"""How a library says what was asked and answered: attributes and events of its span."""
INPUT = {"messages": [{"role": "user", "content": QUESTION}]}
OUTPUT = {"messages": [{"role": "assistant", "content": ANSWER}]}


@pytest.fixture(params=["joined", "application"])
def tracer(request, tracing, monkeypatch):
    """Return a tracer of another library, without and with a provider of the application."""
    if request.param == "joined":
        joining.install()
        return trace.ProxyTracerProvider().get_tracer("library")
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with rollout_trace_attr(trace=False):  # joins the provider
        pass
    with rollout_trace_attr():
        pass
    return provider.get_tracer("library")


def tell(span, form):
    """Set on a span what was asked and answered."""
    attributes, events = FORMS[form]
    span.set_attributes(attributes)
    for name, said in events:
        span.add_event(name, said)


def root_of(spans):
    """Return the root of the trajectory of step 1."""
    return next(each for each in spans if not each.span.parent_span_id and "rollout.step" in each.attributes)


@pytest.mark.parametrize("operation", ["chat", "invoke_agent"])
@pytest.mark.parametrize("form", FORMS)
def test_root_shows_messages_of_the_span_below(tracer, recorded, form, operation):
    """A model call or an agent tells them as GenAI's attributes or events; the root has them as JSON."""
    with rollout_trace_attr(step=1), tracer.start_as_current_span("call") as span:
        span.set_attribute("gen_ai.operation.name", operation)
        tell(span, form)
    root = root_of(recorded())
    assert (root.input, root.output) == (INPUT, OUTPUT)


def test_root_shows_openinference_of_the_applications_spans(tracer, recorded):
    """The input of the first span and the output of the last one, whatever provider makes the spans."""
    with rollout_trace_attr(step=1):
        for number in (1, 2):
            with tracer.start_as_current_span("chain") as span:
                span.set_attributes({"input.value": f"in {number}", "output.value": f"out {number}"})
    root = root_of(recorded())
    assert (root.input, root.output) == ("in 1", "out 2")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("tracer")
def test_root_shows_messages_that_were_set_on_itself(recorded, form):
    """LiteLLM's callback writes each call onto the current span, which may be the root."""
    with rollout_trace_attr(step=1):
        tell(trace.get_current_span(), form)
    root = root_of(recorded())
    assert (root.input, root.output) == (INPUT, OUTPUT)


def test_operation_below_the_root_says_more_than_messages_on_the_root(recorded):
    """What an operation takes and returns is shown, as without messages."""

    @rollout_trace_op(name="op")
    def op(value):
        return value

    with rollout_trace_attr(step=1):
        tell(trace.get_current_span(), "attributes")
        op(5)
    root = root_of(recorded())
    assert (root.input, root.output) == ({"value": 5}, 5)


@pytest.mark.parametrize(
    "messages", ["[{broken", "[" * 500, json.dumps([{"role": 1, "parts": [None, 7]}]), ""]
)
def test_unreadable_messages_do_no_harm(tracer, recorded, messages):
    """Nothing raises, and the span keeps what was set."""
    with rollout_trace_attr(step=1):
        trace.get_current_span().set_attribute("gen_ai.input.messages", messages)
        with tracer.start_as_current_span("call") as span:
            span.set_attributes({"gen_ai.operation.name": "chat", "gen_ai.output.messages": messages})
    spans = recorded()
    call = next(each for each in spans if each.name == "call")
    assert call.attributes["gen_ai.output.messages"] == messages
    assert root_of(spans).attributes["gen_ai.input.messages"] == messages


def test_long_messages_are_cut_on_the_root(tracer, recorded):
    """The root shows their beginning, and how much is missing; the span has all of them."""
    long = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "x" * 40_000}]}])
    with rollout_trace_attr(step=1), tracer.start_as_current_span("call") as span:
        span.set_attributes({"gen_ai.operation.name": "chat", "gen_ai.input.messages": long})
    spans = recorded()
    shown = root_of(spans).input
    assert "xxx" in shown
    assert "more characters" in shown
    assert len(shown) < 17_000
    assert next(each for each in spans if each.name == "call").attributes["gen_ai.input.messages"] == long
