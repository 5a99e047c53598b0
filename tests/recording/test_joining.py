"""Inside a trajectory, spans of any OpenTelemetry tracer are recorded, whoever set a provider, and when."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util._once import Once

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.recording import joining
from otel_rollout.record.recording.joined_span import MAX_ATTRIBUTES
from otel_rollout.record.recording.state import state
from tests.spool_reader import Recorded, plain_attributes, read_directory, tree

EARLY = trace.get_tracer("early", "1.2", schema_url="https://example.org/schema")
"""A tracer made when modules are imported, before anything is configured."""
OTHER_CONTENT = (
    "db.query.result.document", "error.message", "gen_ai.evaluation.explanation", "gen_ai.retrieval.query",
    "gen_ai.tool.description", "llm.function_call", "llm.invocation_parameters", "logfire.msg",
    "mlflow.spanInputs", "request_data", "response_data", "tool.description", "tool_call.function.arguments",
    "traceloop.prompt.template",
)  # fmt: skip
"""Attributes in which instrumentors record prompts, arguments, results, or the definitions of tools."""
MODEL_CALL = {"openinference.span.kind": "LLM", "llm.token_count.prompt": 3}


@rollout_trace_op(name="op")
def op(value: object) -> object:
    with trace.get_tracer("library").start_as_current_span("inside op"):
        return value


@pytest.fixture
def no_provider(monkeypatch):
    """Let the test set a global provider, as an application does once."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(EARLY, "_real_tracer", None)  # which it keeps


@pytest.fixture
def application(no_provider) -> tuple[TracerProvider, InMemorySpanExporter]:
    """Return a provider that the application has not set yet, and what its backend gets."""
    provider, backend = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(backend))
    return provider, backend


def names(spans: list[Recorded]) -> list[str]:
    return sorted(span.name for span in spans)


# --- Which spans are recorded -------------------------------------------------------------------------------


def test_spans_of_tracers_made_before_and_later_join_the_trajectory(recorded):
    """All have the trajectory's identity, trace and their own scope; ours nest with them."""
    late = trace.get_tracer("late")
    with rollout_trace_attr(step=3, sample_index=1), EARLY.start_as_current_span("before"):
        late.start_as_current_span("after")(op)(1)
    spans = recorded()
    assert tree(spans) == {"rollout_trace": [{"before": [{"after": [{"op": ["inside op"]}]}]}]}
    assert {span.attributes["rollout.step"] for span in spans} == {3}
    assert {span.name: span.scope for span in spans} == {
        "rollout_trace": "otel_rollout",
        "before": "early",
        "after": "late",
        "op": "otel_rollout",
        "inside op": "library",
    }


def test_span_outside_trajectories_stays_what_it_was(recorded):
    """It does not record, neither alone nor below an operation outside any trajectory."""
    with EARLY.start_as_current_span("alone") as span:
        assert not span.is_recording()
        assert not span.get_span_context().is_valid
    op(1)
    assert names(recorded()) == ["op"]


def test_spans_of_threads_tasks_and_given_contexts_join(recorded):
    """The context decides, as for spans of the SDK."""

    async def task() -> None:
        with EARLY.start_as_current_span("task"):
            await asyncio.sleep(0)

    async def rollout() -> None:
        with rollout_trace_attr(step=1):
            await asyncio.gather(task(), task())
            EARLY.start_span("given", context=trace.set_span_in_context(trace.get_current_span())).end()
            EARLY.start_span("elsewhere", context=Context()).end()

    asyncio.run(rollout())
    assert tree(recorded()) == {"rollout_trace": ["task", "task", "given"]}


def test_decorated_functions_and_coroutines_are_spans(recorded):
    """``start_as_current_span`` decorates both, as the API's tracers do; each call is a span of its own."""

    @EARLY.start_as_current_span("function")
    def function() -> int:
        return 1

    @EARLY.start_as_current_span("coroutine")
    async def coroutine() -> int:
        await asyncio.sleep(0)
        return 2

    with rollout_trace_attr(step=1):
        assert function() + function() == 2
        assert asyncio.run(coroutine()) == 2
    assert tree(recorded()) == {"rollout_trace": ["function", "function", "coroutine"]}


@pytest.mark.parametrize("how", ["trace", "sampled"])
def test_nothing_is_recorded_in_a_trajectory_that_is_left_out(how, fresh_process, test_exporters, tmp_path):
    """Neither the library's span nor an operation of ours inside it."""
    otel_rollout.configure(
        {"test-file": {"path": str(tmp_path / "delivered")}}, sample_rate=0.0 if how == "sampled" else 1.0
    )
    trajectory = rollout_trace_attr(step=1, sample_index=1, trace=how != "trace")
    with trajectory, EARLY.start_as_current_span("library") as span:
        assert not span.is_recording()
        op(1)
    active = state.runtime
    assert active is not None
    assert active.writer.flush(10)
    assert read_directory(tmp_path / "spool") == []


def test_no_op_provider_that_the_application_chose_is_respected(recorded, no_provider):
    """An application that wants no spans of a library gets none."""
    trace.set_tracer_provider(trace.NoOpTracerProvider())
    with rollout_trace_attr(step=1):
        with trace.get_tracer("library").start_as_current_span("unwanted"):
            pass
        with EARLY.start_as_current_span("unwanted"):
            pass
    assert names(recorded()) == ["rollout_trace"]


# --- The application's provider -----------------------------------------------------------------------------


def test_provider_set_between_two_spans_takes_over_at_once(recorded, application, caplog):
    """It is not refused; each span is in the spool once, and later ones also in the application's backend."""
    provider, backend = application
    with rollout_trace_attr(step=1):
        with EARLY.start_as_current_span("before"):
            trace.set_tracer_provider(provider)
            with EARLY.start_as_current_span("after"):
                pass
        with trace.get_tracer("direct").start_as_current_span("direct"):
            op(1)
    assert trace.get_tracer_provider() is provider
    assert tree(recorded()) == {"rollout_trace": [{"before": ["after"]}, {"direct": [{"op": ["inside op"]}]}]}
    assert {span.attributes["rollout.step"] for span in recorded()} == {1}
    assert {span.name for span in backend.get_finished_spans()} == {"after", "direct", "op", "inside op"}
    assert caplog.text == ""


def test_provider_set_first_gets_every_span_once(recorded, application):
    """A proxy of before, the provider's own tracer, and ours: one tree here and there."""
    provider, backend = application
    trace.set_tracer_provider(provider)
    own = provider.get_tracer("own")
    with rollout_trace_attr(step=1), EARLY.start_as_current_span("proxy"), own.start_as_current_span("own"):
        op(1)
    expected = {"rollout_trace": [{"proxy": [{"own": [{"op": ["inside op"]}]}]}]}
    assert tree(recorded()) == expected
    assert sorted(span.name for span in backend.get_finished_spans()) == names(recorded())


def test_public_provider_serves_instrumentors(recorded):
    """Its tracers record inside trajectories alone."""
    tracer = otel_rollout.tracer_provider().get_tracer("handed", "2")
    with tracer.start_as_current_span("outside") as span:
        assert not span.is_recording()
    with rollout_trace_attr(step=1), tracer.start_as_current_span("inside"):
        op(1)
    assert tree(recorded()) == {"rollout_trace": [{"inside": [{"op": ["inside op"]}]}]}


def test_public_provider_uses_the_applications(recorded, application):
    """Spans then reach the application's backend too, and the spool once; whenever the provider is set."""
    provider, backend = application
    tracer = otel_rollout.tracer_provider().get_tracer("handed")
    with rollout_trace_attr(step=1), tracer.start_as_current_span("before"):
        trace.set_tracer_provider(provider)
        with tracer.start_as_current_span("after"):
            pass
    with tracer.start_as_current_span("outside"):
        pass
    assert tree(recorded()) == {"rollout_trace": [{"before": ["after"]}]}
    assert [span.name for span in backend.get_finished_spans()] == ["after", "outside"]


# --- Runs, forks, the end -----------------------------------------------------------------------------------


def test_kept_tracer_records_into_the_present_run(recorded, tmp_path):
    """A tracer and a span's scope outlive the run in which they were first used."""
    with rollout_trace_attr(step=1), EARLY.start_as_current_span("first run"):
        pass
    recorded()
    otel_rollout.configure(experiment_name="another")
    with rollout_trace_attr(step=2), EARLY.start_as_current_span("second run"):
        pass
    spans = [span for span in recorded() if span.scope == "early"]
    runs = {span.name: span.attributes["rollout.experiment_name"] for span in spans}
    assert runs == {"first run": "experiment", "second run": "another"}


def test_kept_tracer_records_in_a_forked_child(recorded):
    """A child has a writer of its own, and joins without a further call."""
    with rollout_trace_attr(step=1), EARLY.start_as_current_span("parent"):
        child = os.fork()
        if child == 0:
            with EARLY.start_as_current_span("child"):
                pass
            active = state.runtime
            os._exit(0 if active is not None and active.writer.flush(10) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert tree(recorded()) == {"rollout_trace": [{"parent": ["child"]}]}


@pytest.mark.usefixtures("forwarder")
def test_kept_tracer_is_a_no_op_after_shutdown(recorded):
    """Nothing is recorded outside trajectories, and no run begins."""
    with rollout_trace_attr(step=1), EARLY.start_as_current_span("before"):
        pass
    otel_rollout.shutdown(20)
    with EARLY.start_as_current_span("after") as span:
        assert not span.is_recording()
    assert state.runtime is None
    assert names(recorded()) == ["before", "rollout_trace"]


def test_api_is_unchanged_while_tracing_is_off():
    """Nothing is patched, and the module is not imported."""
    code = (
        "import sys, otel_rollout; from opentelemetry import trace; "
        "before = vars(trace.ProxyTracer)['_tracer']; "
        "otel_rollout.instrument(); "
        "print(vars(trace.ProxyTracer)['_tracer'] is before, "
        "[name for name in sys.modules if 'joining' in name or 'instrumentors' in name])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True []"


def test_uninstrument_restores_the_api(tracing, no_provider):
    """Tracers that are kept do nothing from then on."""
    before = vars(trace.ProxyTracer)["_tracer"]
    otel_rollout.uninstrument()
    assert vars(trace.ProxyTracer)["_tracer"] is not before
    with rollout_trace_attr(step=1), EARLY.start_as_current_span("not joined") as span:
        assert not span.is_recording()


def test_missing_seam_is_told_once(fresh_process, test_exporters, monkeypatch, caplog):
    """Without ProxyTracer._tracer one line says what is lost and what to do; the rest works."""
    monkeypatch.setattr(trace, "ProxyTracer", type("ProxyTracer", (), {}))
    for name in ("one", "two"):
        otel_rollout.configure("console", experiment_name=name)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "has no ProxyTracer._tracer" in caplog.text
    assert "tracer_provider=otel_rollout.tracer_provider()" in caplog.text
    assert joining.problem() in caplog.text


# --- What a span records ------------------------------------------------------------------------------------


def test_whole_api_of_spans_is_recorded(recorded):
    """Kind, times, attributes, events, links, status and exceptions are as with the SDK."""
    link = Link(SpanContext(1, 2, False, TraceFlags(1)), {"why": "because"})
    with rollout_trace_attr(step=1):
        span = EARLY.start_span(
            "first name", kind=SpanKind.CLIENT, attributes={"a": 1, "none": None}, links=[link], start_time=10
        )
        assert span.is_recording()
        messages = ["x"]
        span.set_attributes({"list": messages, "text": "t", "rollout.step": 99})
        messages.append("later")
        span.set_attribute("map", {"k": [1, 2.5]})
        span.add_event("event", {"e": True}, timestamp=11)
        span.update_name("name")
        span.record_exception(ValueError("bad"))
        span.set_status(Status(StatusCode.ERROR, "failed"))
        span.end(end_time=20)
        span.set_attribute("late", 1)
        assert not span.is_recording()
    line = next(each for each in recorded() if each.scope == "early")
    assert (line.name, line.span.kind, line.span.start_time_unix_nano, line.span.end_time_unix_nano) == (
        "name", 3, 10, 20
    )  # fmt: skip
    identity = {key: value for key, value in line.attributes.items() if key.startswith("rollout.")}
    assert identity["rollout.step"] == 1
    assert {key: value for key, value in line.attributes.items() if key not in identity} == {
        "a": 1, "list": ["x"], "text": "t", "map": {"k": [1, 2.5]},
    }  # fmt: skip
    assert [event.name for event in line.span.events] == ["event", "exception"]
    assert plain_attributes(line.span.links[0].attributes) == {"why": "because"}
    assert (line.span.status.code, line.span.status.message) == (2, "failed")


def test_instrumentors_can_read_the_span(recorded):
    """OpenInference reads ``status`` and ``_attributes``, OpenLLMetry ``attributes`` and ``end_time``."""
    with rollout_trace_attr(step=1), EARLY.start_as_current_span("outer") as outer:
        span = EARLY.start_span("readable", attributes={"a": 1})
        assert span.attributes == span._attributes == {"a": 1}
        assert (span.name, span.status.status_code, span.end_time) == ("readable", StatusCode.UNSET, None)
        assert span.parent == outer.get_span_context()
        assert span.context == span.get_span_context()
        span.set_status(StatusCode.OK)
        assert span.status.status_code is StatusCode.OK
        assert span.start_time > 0
        span.end()
        assert span.end_time >= span.start_time


@pytest.mark.parametrize("wanted", [True, False])
def test_exception_that_leaves_a_span_is_recorded_if_wanted(recorded, wanted):
    """``record_exception`` and ``set_status_on_exception`` hold for both ways to use a span."""
    options = {"record_exception": wanted, "set_status_on_exception": wanted}
    with rollout_trace_attr(step=1):
        with pytest.raises(ValueError, match="bad"), EARLY.start_as_current_span("current", **options):
            raise ValueError("bad")
        with pytest.raises(ValueError, match="bad"), EARLY.start_span("plain", **options):
            raise ValueError("bad")
    spans = [span.span for span in recorded() if span.scope == "early"]
    assert [(len(span.events), span.status.code) for span in spans] == [(1, 2) if wanted else (0, 0)] * 2


def test_values_that_cannot_be_recorded_cost_only_themselves(recorded):
    """A value whose text raises is counted as dropped; the rest of the span is recorded."""

    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with rollout_trace_attr(step=1), EARLY.start_as_current_span("odd") as span:
        span.set_attribute("hostile", Hostile())
        span.set_attributes(None)
        span.set_attribute("kept", 1)
        span.add_event("odd", {"hostile": Hostile()})
    line = next(each for each in recorded() if each.name == "odd")
    assert line.attributes["kept"] == 1
    assert (line.span.dropped_attributes_count, line.span.dropped_events_count) == (2, 0)
    assert line.span.events[0].dropped_attributes_count == 1


def test_attributes_beyond_the_limit_are_counted_and_told(recorded, caplog):
    """A conversation of a thousand messages fits; what does not fit is told in one line."""
    with rollout_trace_attr(step=1), EARLY.start_as_current_span("many") as span:
        for index in range(MAX_ATTRIBUTES + 3):
            span.set_attribute(f"llm.input_messages.{index}.message.content", "text")
        span.set_attribute("llm.input_messages.0.message.content", "changed")
    line = next(each for each in recorded() if each.name == "many")
    assert line.span.dropped_attributes_count == 3
    assert line.attributes["llm.input_messages.0.message.content"] == "changed"
    assert caplog.text.count("further ones are") == 1


@pytest.mark.parametrize("mode", ["none", "metadata"])
def test_content_is_limited_as_in_our_own_spans(mode, fresh_process, test_exporters, tmp_path):
    """OTEL_ROLLOUT_CAPTURE_CONTENT holds for messages, events and exceptions of other libraries."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, capture_content=mode)

    def call() -> None:
        span = trace.get_current_span()
        span.set_attribute("llm.input_messages.0.message.content", "secret")
        span.set_attribute("llm.input_messages.0.message.role", "user")
        span.set_attribute("gen_ai.input.messages", '[{"content": "secret"}]')
        span.set_attribute("llm.token_count.prompt", 3)
        span.add_event("gen_ai.user.message", {"gen_ai.event.content": "secret", "content": "secret"})
        for name in OTHER_CONTENT:
            span.set_attribute(name, "secret")
        raise ValueError("secret")

    with rollout_trace_attr(step=1), pytest.raises(ValueError, match="secret"):
        EARLY.start_as_current_span("call")(call)()
    active = state.runtime
    assert active is not None
    assert active.writer.flush(10)
    line = next(each for each in read_directory(tmp_path / "spool") if each.name == "call")
    assert "secret" not in str(line.span)
    assert line.attributes["llm.input_messages.0.message.role"] == "user"
    assert line.attributes["llm.token_count.prompt"] == 3
    assert line.attributes.get("gen_ai.input.messages") == ("<23 characters>" if mode == "metadata" else None)


def test_long_text_is_cut(fresh_process, test_exporters, tmp_path):
    """OTEL_ROLLOUT_VALUE_LIMIT bounds each text, and says how much is missing."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, value_limit=100)
    with rollout_trace_attr(step=1), EARLY.start_as_current_span("long") as span:
        span.set_attribute("input.value", "x" * 150)
        span.set_attribute("texts", ["y" * 150, "z"])
    active = state.runtime
    assert active is not None
    assert active.writer.flush(10)
    lines = {each.name: each.attributes for each in read_directory(tmp_path / "spool")}
    assert lines["long"]["input.value"] == "x" * 100 + "… (50 more characters)"
    assert lines["long"]["texts"] == ["y" * 100 + "… (50 more characters)", "z"]
    assert lines["rollout_trace"]["input.value"] == '"' + "x" * 100 + '… (50 more characters)"'


def test_span_that_is_never_ended_is_recorded_when_nothing_refers_to_it(recorded, caplog):
    """An abandoned stream leaves its span with what was known, and one line names the library."""
    with rollout_trace_attr(step=1):
        for _ in range(2):
            span = EARLY.start_span("abandoned", attributes={"a": 1})
            del span
    spans = [each for each in recorded() if each.name == "abandoned"]
    assert [(each.attributes["a"], each.span.events[0].name) for each in spans] == [(1, "never ended")] * 2
    assert caplog.text.count("a span of early was never ended") == 1


def test_span_outside_trajectories_hides_no_span_around_it():
    """A caller in another process stays the parent of what follows inside the block."""
    remote = trace.SpanContext(0x4D2, 7, True, trace.TraceFlags(1))
    joining.install()
    with trace.use_span(trace.NonRecordingSpan(remote)), EARLY.start_as_current_span("library"):
        assert trace.get_current_span().get_span_context().trace_id == 0x4D2


# --- One span where one thing happened ----------------------------------------------------------------------


def test_model_call_inside_another_librarys_model_call_is_one_span(recorded):
    """A framework's span and its client's span of one call: the outer one is kept, and ours nest below it."""
    client = trace.get_tracer("client").start_as_current_span("client", attributes=MODEL_CALL)
    with rollout_trace_attr(step=1), EARLY.start_as_current_span("framework", attributes=MODEL_CALL):
        client(op)(1)
    assert tree(recorded()) == {"rollout_trace": [{"framework": [{"op": ["inside op"]}]}]}


def test_model_call_whose_kind_is_set_at_its_end_is_one_span(recorded):
    """OpenInference's wrapper keeps a span's kind back, as for LiteLLM around OpenAI's client."""
    client = trace.get_tracer("client").start_as_current_span("client", attributes=MODEL_CALL)
    with rollout_trace_attr(step=1), EARLY.start_as_current_span("framework") as framework:
        framework.set_attribute("llm.model_name", "m")
        client(op)(1)
        framework.set_attributes(MODEL_CALL)
    assert tree(recorded()) == {"rollout_trace": [{"framework": [{"op": ["inside op"]}]}]}


def test_operation_of_kind_llm_around_a_model_call_becomes_a_chain(recorded, caplog):
    """One span is the model call, with its tokens; one warning names the instrumentor."""

    @rollout_trace_op(kind="LLM")
    def generate() -> dict[str, object]:
        with EARLY.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}) as span:
            span.set_attribute("gen_ai.usage.input_tokens", 3)
        return {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}

    with rollout_trace_attr(step=1):
        generate()
        generate()
    ours = [span for span in recorded() if span.name.endswith("generate")]
    assert [span.attributes["openinference.span.kind"] for span in ours] == ["CHAIN", "CHAIN"]
    assert not any(key.startswith("gen_ai.usage") for span in ours for key in span.attributes)
    assert caplog.text.count("an operation of kind LLM contains a model call that early records") == 1


def test_generator_around_a_streamed_model_call_counts_no_tokens(recorded):
    """The joined span has them; the generator that passes the pieces on does not count them again."""

    @rollout_trace_op(kind="LLM")
    def stream() -> Iterator[dict[str, object]]:
        with EARLY.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}) as span:
            span.set_attribute("gen_ai.usage.input_tokens", 3)
            yield {"choices": []}
        yield {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}

    with rollout_trace_attr(step=1):
        assert len(list(stream())) == 2
    counted = [span.name for span in recorded() if "gen_ai.usage.input_tokens" in span.attributes]
    assert counted == ["chat"]


def test_trajectory_shows_input_and_output_of_joined_spans(recorded):
    """A trajectory without operations of ours shows what its agent got and returned."""
    with rollout_trace_attr(step=1):
        for number in (1, 2):
            with EARLY.start_as_current_span("agent") as span:
                span.set_attributes(
                    {"input.value": f"question {number}", "output.value": f'{{"n":{number}}}'}
                )
                span.set_attribute("output.mime_type", "application/json")
    root = next(span for span in recorded() if span.name == "rollout_trace")
    assert (root.input, root.output) == ("question 1", {"n": 2})
