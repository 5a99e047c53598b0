"""In an application with its own SDK, its provider is joined and never replaced."""

import random

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanContext, StatusCode

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.base import semconv
from otel_rollout.record.recording import processor
from otel_rollout.record.recording.provider import mark_of
from otel_rollout.record.recording.state import state
from otel_rollout.spool import layout
from tests.sdk_spans import spans_of
from tests.spool_reader import plain_attributes, read_directory, tree


@rollout_trace_op(name="op")
def op(value: int) -> int:
    with trace.get_tracer("app").start_as_current_span("app inside"):
        return value


@pytest.fixture
def application(monkeypatch) -> InMemorySpanExporter:
    """Set an SDK provider with an exporter, as an application does."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    return exporter


def test_spans_go_to_the_application_and_to_the_spool(application, recorded):
    """Application and spool have one tree, with the trajectory's identity."""
    with rollout_trace_attr(step=3, sample_index=1):
        assert op(7) == 7
        score("reward", 1.0)
    spans = recorded()
    assert tree(spans) == {"rollout_trace": [{"op": ["app inside"]}, "score reward"]}
    assert {s.attributes["rollout.step"] for s in spans} == {3}
    assert {(s.name, s.context.span_id) for s in application.get_finished_spans()} == {
        (s.name, int(s.span.span_id.hex(), 16)) for s in spans
    }
    root = spans[-1]
    assert (root.input, root.output) == ({"value": 7}, 7)
    assert root.attributes["rollout.score.reward"] == 1.0


def test_trace_has_the_runs_resource_alone(recorded, monkeypatch):
    """Backends make a trace's tags of the first resource.

    The scope names a span's origin.
    """
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "the application's"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with rollout_trace_attr(step=1), provider.get_tracer("app").start_as_current_span("its own"):
        pass
    assert {s.resource["service.name"] for s in recorded()} == {"project"}
    assert {s.resource.attributes["service.name"] for s in exporter.get_finished_spans()} == {
        "the application's"
    }


def test_application_span_outside_any_trajectory_is_not_recorded(application, recorded):
    """Our own call outside any trajectory is recorded."""
    op(1)  # our own call outside any trajectory is recorded
    with trace.get_tracer("app").start_as_current_span("request"):
        pass
    assert [s.name for s in recorded()] == ["op"]
    assert {s.name for s in application.get_finished_spans()} == {"op", "app inside", "request"}


def test_trajectory_inside_an_application_span_continues_its_trace(application, recorded):
    """The application's span is the parent."""
    with trace.get_tracer("app").start_as_current_span("request") as request, rollout_trace_attr(step=1):
        pass
    (root,) = recorded()
    assert root.span.trace_id.hex() == f"{request.get_span_context().trace_id:032x}"


def test_provider_set_late_is_joined_from_then_on(recorded, monkeypatch):
    """Our provider records earlier trajectories, the application's later ones."""
    with rollout_trace_attr(name="before"):
        pass
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with rollout_trace_attr(name="after"):
        pass
    assert [s.name for s in recorded()] == ["before", "after"]
    assert [s.name for s in exporter.get_finished_spans()] == ["after"]


def test_provider_without_sdk_is_left_alone(recorded):
    """We use our own provider, and never set a global one."""
    before = trace.get_tracer_provider()
    with rollout_trace_attr():
        pass
    assert trace.get_tracer_provider() is before
    assert len(recorded()) == 1


def test_ids_do_not_come_from_the_global_generator(application, recorded):
    """Workers with equal seeds have different ids.

    Their random numbers are unchanged.
    """
    random.seed(0)
    state = random.getstate()
    op(1)
    random.seed(0)
    with rollout_trace_attr():
        pass
    assert len({s.span.trace_id for s in recorded()}) == 2
    random.seed(0)
    with rollout_trace_attr():
        score("reward", 1.0)
    assert random.getstate() == state


def test_spans_through_the_application_have_the_mark_of_the_run(application, recorded):
    """A receiver knows our spans by it; the application's own keep the ids of its generator."""
    with rollout_trace_attr(step=1):
        op(1)
        score("reward", 1.0)
    spans = recorded()
    mark = mark_of(spans[0].resource["rollout.run.id"]).decode()
    assert {s.name for s in spans if s.span.span_id.hex().startswith(mark)} == {
        *("rollout_trace", "op", "score reward")
    }


def test_application_sampler_decides_for_whole_trajectories(recorded, monkeypatch):
    """All spans below a root that is sampled out are left out.

    No operation becomes its own trace.
    """
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.5)))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    @rollout_trace_op(name="inner")
    def inner() -> None: ...

    for _ in range(40):
        with rollout_trace_attr():
            inner()
    spans = recorded()
    assert 0 < len(spans) < 80
    assert [s.name for s in spans] == ["inner", "rollout_trace"] * (len(spans) // 2)


@pytest.mark.parametrize("limits", [SpanLimits(max_attribute_length=100), SpanLimits(max_attributes=3)])
def test_application_limits_do_not_cut_our_record(limits, recorded, monkeypatch):
    """Identity and attributes are whole, whatever the SDK cuts or evicts."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(span_limits=limits)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    @rollout_trace_op(name="long")
    def long(text: str) -> str:
        return text.upper()

    with rollout_trace_attr(step=3, sample_index=1):
        long("x" * 1000)
    call, root = recorded()
    assert (call.input, call.output) == ({"text": "x" * 1000}, "X" * 1000)
    assert (root.input, root.output) == (call.input, call.output)
    for span in (call, root):
        assert (span.attributes["rollout.step"], span.attributes["rollout.sample_index"]) == (3, 1)
    seen = [span.attributes for span in exporter.get_finished_spans()]
    assert max(len(attributes) for attributes in seen) == 3 or "x" * 1000 not in str(seen)


NARROW = {
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "1",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "2",
    "OTEL_ATTRIBUTE_COUNT_LIMIT": "1",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "2",
    "OTEL_SPAN_EVENT_COUNT_LIMIT": "1",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "1",
    "OTEL_SPAN_LINK_COUNT_LIMIT": "0",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": "0",
}


def told(tmp_path) -> list[ReadableSpan]:
    """Return the spans as exporters get them."""
    (node_dir,) = {path.parent for path in (tmp_path / "spool").rglob("*.jsonl")}
    lines = b"".join((node_dir / name.file).read_bytes() for name in layout.segments(node_dir)).splitlines()
    return [span for line in lines for span in spans_of(line)]


def story(tmp_path, recorded) -> list[dict[str, object]]:
    """Record everything that a trajectory's spans can have.

    Return it without ids and times.
    """

    def fail() -> None:
        with rollout_trace_attr(step=3, sample_index="row-seven", who="somebody"):
            op(7)
            score("reward", 0.5, comment="because it is half right")
            span = trace.get_current_span()
            span.set_attributes({"mine": "a long text", "many": ["first", "second"]})
            span.add_event("first", {"detail": "long enough", "number": 3})
            span.add_event("second", {"detail": "long enough"})
            span.add_link(SpanContext(5, 6, True), {"because": "it follows"})
            raise ValueError("a message of some length")

    with pytest.raises(ValueError, match="of some length"):
        fail()
    recorded()
    return [
        {
            "name": span.name,
            "attributes": {
                name: "" if name.startswith(semconv.SCORE_TIME_PREFIX) else value
                for name, value in span.attributes.items()
            },
            "events": [
                (
                    event.name,
                    {k: v for k, v in event.attributes.items() if k != "exception.stacktrace"},
                    str(event.attributes.get("exception.stacktrace"))[-30:],
                )
                for event in span.events
            ],
            "links": [(link.context.trace_id, dict(link.attributes)) for link in span.links],
            "status": (span.status.status_code, span.status.description),
            "dropped": (span.dropped_attributes, span.dropped_events, span.dropped_links),
        }
        for span in told(tmp_path)
        if span.name != "app inside"
    ]


@pytest.mark.parametrize("limited_by", ["environment", "provider"])
def test_exported_spans_are_whole_under_application_limits(limited_by, recorded, monkeypatch, tmp_path):
    """Attributes, events, exceptions, links and scores are as without limits."""
    exporter = InMemorySpanExporter()
    with monkeypatch.context() as patch:
        limits = SpanLimits(0, 0, 0, 0, 0, 0, 1, 1) if limited_by == "provider" else None
        for name, value in NARROW.items() if limited_by == "environment" else ():
            patch.setenv(name, value)
        provider = TracerProvider(span_limits=limits)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        patch.setattr(trace, "get_tracer_provider", lambda: provider)
        limited = story(tmp_path, recorded)
    assert max(len(span.attributes) for span in exporter.get_finished_spans()) <= 1
    alone = story(tmp_path, recorded)[len(limited) :]
    assert [span["name"] for span in limited] == ["op", "score reward", "rollout_trace"]
    assert limited == alone


def test_content_set_by_the_user_replaces_ours(application, recorded):
    """A value set by hand after ours is recorded."""
    with rollout_trace_attr() as trajectory:
        op(1)
        trajectory.set_output({"mine": True})
        trace.get_current_span().set_attribute("output.value", '"by hand"')
    root = recorded()[-1]
    assert root.output == "by hand"


def test_spans_that_never_end_take_bounded_memory(application, recorded, monkeypatch):
    """Data of the oldest open spans are forgotten without harm."""
    monkeypatch.setattr(processor, "MAX_OPEN", 10)
    with rollout_trace_attr(step=1):
        for _ in range(50):
            trace.get_tracer("app").start_span("never ends")
    assert len(state.sdk_spans) <= 10


def test_sampler_that_drops_everything_is_warned_of_once(recorded, monkeypatch, caplog):
    """Nothing arrives because of the application's sampler: the report counts it."""
    provider = TracerProvider(sampler=ALWAYS_OFF)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    for _ in range(3):
        with rollout_trace_attr():
            op(1)
    assert recorded() == []
    assert otel_rollout.status().sampled_out == {"application_sampler": 3}
    warnings = [r.message for r in caplog.records if "sampler of the application" in r.message]
    assert len(warnings) == 1


def test_provider_shut_down_early_still_records(application, recorded):
    """The shutdown ends the application's export, not ours."""
    trace.get_tracer_provider().shutdown()
    with rollout_trace_attr():
        op(1)
    assert "op" in [span.name for span in recorded()]


def test_provider_of_another_vendor_is_left_alone(recorded, monkeypatch):
    """With a proxy or another vendor's provider, we use our own."""
    provider = trace.NoOpTracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with rollout_trace_attr():
        op(1)
    assert [span.name for span in recorded()] == ["op", "rollout_trace"]


@pytest.mark.usefixtures("forwarder")
def test_second_run_records_into_its_own_directory_alone(application, recorded):
    """The processor that stays in the application's provider follows the run."""
    op(1)
    otel_rollout.shutdown(10)
    otel_rollout.configure("test-file", shutdown_timeout=0)
    op(2)
    assert sorted(s.input["value"] for s in recorded() if s.name == "op") == [1, 2]
    assert otel_rollout.status().dropped == {}


@pytest.mark.parametrize("mode", ["none", "metadata"])
def test_content_of_the_applications_spans_is_limited_in_the_spool_alone(
    mode, application, fresh_process, test_exporters, tmp_path
):
    """OTEL_ROLLOUT_CAPTURE_CONTENT holds for what is recorded; the application's backend gets everything."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, capture_content=mode)

    def call() -> None:
        span = trace.get_current_span()
        span.set_attribute("llm.input_messages.0.message.content", "secret")
        span.set_attribute("llm.input_messages.0.message.role", "user")
        span.set_attribute("gen_ai.input.messages", '[{"content": "secret"}]')
        span.set_attribute("llm.token_count.prompt", 3)
        span.add_event("gen_ai.user.message", {"gen_ai.event.content": "secret"})
        raise ValueError("secret")

    with rollout_trace_attr(step=1), pytest.raises(ValueError, match="secret"):
        trace.get_tracer("app").start_as_current_span("call")(call)()
    assert state.runtime.writer.flush(10)
    line = next(each for each in read_directory(tmp_path / "spool") if each.name == "call")
    assert "secret" not in str(line.span)
    assert line.attributes["llm.input_messages.0.message.role"] == "user"
    assert line.attributes["llm.token_count.prompt"] == 3
    assert line.attributes.get("gen_ai.input.messages") == ("<23 characters>" if mode == "metadata" else None)
    assert line.span.status.code == StatusCode.ERROR.value
    exception = plain_attributes(line.span.events[1].attributes)
    assert exception == {"exception.type": "ValueError", "exception.escaped": "False"}
    (theirs,) = [each for each in application.get_finished_spans() if each.name == "call"]
    assert theirs.to_json().count("secret") >= 5


def test_long_text_of_the_applications_spans_is_cut_in_the_spool_alone(
    application, fresh_process, test_exporters, tmp_path
):
    """OTEL_ROLLOUT_VALUE_LIMIT bounds what is recorded of each text."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, value_limit=100)
    with rollout_trace_attr(step=1), trace.get_tracer("app").start_as_current_span("long") as span:
        span.set_attribute("input.value", "x" * 150)
        span.add_event("gen_ai.user.message", {"gen_ai.event.content": "y" * 150})
    assert state.runtime.writer.flush(10)
    line = next(each for each in read_directory(tmp_path / "spool") if each.name == "long")
    assert line.attributes["input.value"] == "x" * 100 + "… (50 more characters)"
    (event,) = line.span.events
    assert plain_attributes(event.attributes)["gen_ai.event.content"].startswith("y" * 100 + "… (50 more")
    (theirs,) = [each for each in application.get_finished_spans() if each.name == "long"]
    assert theirs.attributes["input.value"] == "x" * 150


CALL = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3}


@rollout_trace_op(kind="LLM")
def generate(tracer: str = "instrumentor") -> dict[str, object]:
    with trace.get_tracer(tracer).start_as_current_span("chat", attributes=CALL):
        return {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}


@pytest.mark.parametrize("choice", ["share", "apart"])
def test_operation_around_a_model_call_of_the_applications_provider_counts_no_tokens(
    choice, application, fresh_process, test_exporters, tmp_path, caplog
):
    """The call counts once, and one warning names the instrumentor; the backend gets what was set."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "out")}}, application_provider=choice)
    with rollout_trace_attr(step=1):
        generate()
        generate()
    assert state.runtime.writer.flush(10)
    ours = [each for each in read_directory(tmp_path / "spool") if each.name == "generate"]
    assert [each.attributes["openinference.span.kind"] for each in ours] == ["CHAIN", "CHAIN"]
    assert not any(key.startswith("gen_ai.usage") for each in ours for key in each.attributes)
    assert caplog.text.count("an operation of kind LLM contains a model call that instrumentor records") == 1
    theirs = [each for each in application.get_finished_spans() if each.name == "generate"]
    assert [each.attributes["openinference.span.kind"] for each in theirs] == ["LLM"] * (
        2 if choice == "share" else 0
    )


def test_operation_inside_an_operation_counts_the_tokens_of_a_reply_once(application, recorded):
    """Also where the operations' spans go through the application's provider."""

    @rollout_trace_op(name="inner")
    def inner():
        return {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}

    @rollout_trace_op(name="outer")
    def outer():
        return inner()

    with rollout_trace_attr(step=1):
        outer()
    counted = [each.name for each in recorded() if "gen_ai.usage.input_tokens" in each.attributes]
    assert counted == ["inner"]


def test_model_call_inside_a_model_call_of_the_applications_provider_is_a_warning(
    application, recorded, caplog
):
    """Both spans are in the application's trace, so both are recorded; one warning names both."""
    with rollout_trace_attr(step=1):
        for _ in range(2):
            with (
                trace.get_tracer("framework").start_as_current_span("outer", attributes=CALL),
                trace.get_tracer("client").start_as_current_span("inner", attributes=CALL),
            ):
                pass
    assert tree(recorded()) == {"rollout_trace": [{"outer": ["inner"]}, {"outer": ["inner"]}]}
    assert caplog.text.count("framework and client both record one model call") == 1


def test_attributes_beyond_the_limits_of_the_applications_provider_are_told_once(
    application, recorded, caplog
):
    """One line has the span and what to set; the identity and the next span are whole."""
    with rollout_trace_attr(step=1):
        with trace.get_tracer("app").start_as_current_span("odd", attributes={"": 1}):
            assert not caplog.text.count("the limits of")
        for name in ("many", "many more", "few"):
            with trace.get_tracer("app").start_as_current_span(name) as span:
                for number in range(1000 if "many" in name else 10):
                    span.set_attribute(f"attribute {number}", number)
    spans = {each.name: each for each in recorded()}
    assert spans["many"].span.dropped_attributes_count > 0
    assert spans["many"].attributes["rollout.step"] == 1
    assert spans["few"].attributes.keys() >= {f"attribute {number}" for number in range(10)}
    assert caplog.text.count("the limits of the application's tracer provider dropped") == 1
    assert "attributes and 0 events of 'many': set OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=10000" in caplog.text


def test_what_is_beyond_our_limits_is_counted_through_the_application(application, recorded, monkeypatch):
    """Each kind has its own count, as without an application."""
    for name in ("MAX_ATTRIBUTES", "MAX_EVENTS", "MAX_LINKS"):
        monkeypatch.setattr(processor, name, 1)
    with rollout_trace_attr(step=1):
        span = trace.get_current_span()
        for number in range(4):
            span.add_event("e")
            if number:
                span.add_link(SpanContext(1, 2, False))
    (found,) = recorded()
    assert (found.span.dropped_events_count, found.span.dropped_links_count) == (3, 2)


def test_phases_of_an_engine_in_this_process_are_recorded_below_its_span(application, recorded):
    """vLLM's span goes to the application's provider; the spool gets its phases, and the backend does not."""
    times = {
        semconv.LATENCY_FIRST_TOKEN: 1.75,
        semconv.LATENCY_QUEUE: 1.0,
        semconv.LATENCY_PREFILL: 0.5,
        semconv.LATENCY_DECODE: 2.0,
    }
    tracer = trace.get_tracer("vllm.tracing.otel")
    with rollout_trace_attr(step=3):
        with tracer.start_as_current_span("call"):
            tracer.start_span("llm_request", attributes=times).end()
            tracer.start_span("llm_request", attributes={**times, semconv.LATENCY_QUEUE: "1"}).end()
        tracer.start_span("llm_request", attributes=times, start_time=1 << 70).end()
    spans = recorded()
    phases = ["queue", "prefill", "decode"]
    assert tree(spans) == {
        "rollout_trace": [{"call": [{"llm_request": phases}, "llm_request"]}, "llm_request"],
    }
    assert {s.attributes["rollout.step"] for s in spans} == {3}
    assert {s.scope for s in spans if s.name in phases} == {"otel_rollout"}
    assert not {s.name for s in application.get_finished_spans()} & set(phases)
    counted = state.runtime.writer.counters.read()
    assert (counted.started, counted.recorded, counted.other_scopes) == (8, 8, {"vllm.tracing.otel": 4})


def test_tokens_of_an_engine_are_counted_by_the_call_above(application, recorded):
    """The engine's span is no model call of its own: the call above keeps its kind and its counts."""

    @rollout_trace_op(kind="LLM")
    def call():
        usage = {"gen_ai.usage.prompt_tokens": 5, "gen_ai.usage.completion_tokens": 7}
        trace.get_tracer("vllm.tracing.otel").start_span("llm_request", attributes=usage).end()
        return {"usage": {"prompt_tokens": 5, "completion_tokens": 7}}

    with rollout_trace_attr(step=3):
        call()
    (found,) = [s for s in recorded() if s.name.endswith("call")]
    assert found.attributes[semconv.SPAN_KIND] == "LLM"
    assert found.attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 7
