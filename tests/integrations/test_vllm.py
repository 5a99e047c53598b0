"""What the integration of vLLM does without vLLM: its seams, headers, warnings, and bounds.

The stand-ins have vLLM's parameters. ``tests/vllm`` runs the real engine.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from otel_rollout import rollout_trace_attr
from otel_rollout.base.environment import NAMES_VARIABLE, without_receiver
from otel_rollout.integrations.state import state
from otel_rollout.integrations.vllm import engines, seams
from tests.spool_reader import Recorded, tree

ENDPOINT = "grpc://127.0.0.1:4317"


class Engine:
    """Stands for ``AsyncLLM`` and ``LLMEngine``."""

    def __init__(self, endpoint: str | None, log_stats: bool = True, seed: int = 0) -> None:
        self.log_stats = log_stats
        self.observability_config = SimpleNamespace(otlp_traces_endpoint=endpoint)
        self.model_config = SimpleNamespace(seed=seed)
        self.output_processor: Any = None
        self.output_handler: Any = None
        self.seen: list[Any] = []

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: Any,
        arrival_time: float | None = None,
        trace_headers: dict[str, str] | None = None,
        priority: int = 0,
    ) -> int:
        self.seen.append(trace_headers)
        return priority

    def step(self) -> None:
        raise OSError("the core has died")

    def _run_output_handler(self) -> None:
        async def output_handler() -> trace.Span:
            return trace.get_current_span()

        if self.output_handler is None:
            self.output_handler = asyncio.create_task(output_handler())


class State:
    """Stands for ``RequestState``."""

    def __init__(self, request: Any) -> None:
        self.request_id = request.request_id
        self.stats = None if request.trace_headers is None else SimpleNamespace()
        self.detokenizer = None if request.is_embedding else SimpleNamespace(num_output_tokens=lambda: 3)


class OutputProcessor:
    """Stands for the class of that name."""

    def __init__(self, tracing_enabled: bool = False) -> None:
        self.request_states: dict[str, State] = {}
        self.tracing_enabled = tracing_enabled

    def add_request(self, request: Any, prompt: Any = None) -> None:
        self.request_states.setdefault(request.request_id, State(request))

    def _update_stats_from_finished(self, req_state: State, finish_reason: Any, iteration_stats: Any) -> None:
        pass

    def abort_requests(self, request_ids: list[str]) -> list[str]:
        return [found for found in request_ids if self.request_states.pop(found, None)]

    def propagate_error(self, e: Exception) -> None:
        pass

    def finish(self, request_id: str, reason: str = "stop") -> None:
        """End a request as the engine does."""
        self._update_stats_from_finished(self.request_states.pop(request_id), reason, None)


def request(request_id: str, headers: Any = None, is_embedding: bool = False) -> Any:
    """Stand for ``EngineCoreRequest``."""
    return SimpleNamespace(
        request_id=request_id, arrival_time=0.0, trace_headers=headers, is_embedding=is_embedding
    )


def subclass(class_: type, name: str) -> Any:
    """Return a class whose methods can be replaced without a change to ``class_``."""
    methods = {key: value for key, value in vars(class_).items() if callable(value)}
    return type(name, (), methods)


@pytest.fixture
def engine_class(tracing: None) -> Iterator[Any]:
    """Return a patched ``AsyncLLM``."""
    module: Any = ModuleType("vllm.v1.engine.async_llm")
    module.AsyncLLM = subclass(Engine, "AsyncLLM")
    seams.patch((".engines",), module)
    yield module.AsyncLLM
    seams._patches.undo()
    seams._patches.active = True


@pytest.fixture
def processor_class(tracing: None) -> Iterator[Any]:
    """Return a patched ``OutputProcessor``."""
    module: Any = ModuleType("vllm.v1.engine.output_processor")
    module.OutputProcessor = subclass(OutputProcessor, "OutputProcessor")
    seams.patch((".engines",), module)
    yield module.OutputProcessor
    seams._patches.undo()
    seams._patches.active = True


# --- Trace headers ------------------------------------------------------------------------------------------


def test_request_of_a_trajectory_has_trace_headers(engine_class: Any) -> None:
    """Where vLLM traces, its span continues the trace; given headers stay, also positional ones."""
    engine = engine_class(ENDPOINT)
    with rollout_trace_attr(step=1) as trajectory:
        assert engine.add_request("1", "p", None, priority=5) == 5
        assert engine.add_request("2", "p", None, None, None, 7) == 7
        engine.add_request("3", "p", None, trace_headers={"traceparent": "mine"})
        engine.add_request("4", "p", None, None, {"traceparent": "mine"})
    engine.add_request("5", "p", None)
    added, positional, *given, outside = engine.seen
    assert (
        added["traceparent"].split("-")[1] == positional["traceparent"].split("-")[1] == trajectory.trace_id
    )
    assert given == [{"traceparent": "mine"}] * 2
    assert outside is None


def test_request_gets_no_headers_if_vllm_does_not_trace(engine_class: Any) -> None:
    """vLLM warns of headers that it does not use."""
    engine = engine_class(None)
    with rollout_trace_attr(step=1):
        engine.add_request("1", "p", None)
    assert engine.seen == [None]


def test_request_of_an_unrecorded_trajectory_says_so(engine_class: Any) -> None:
    """vLLM makes no span of it either."""
    engine = engine_class(ENDPOINT)
    with rollout_trace_attr(step=1, trace=False):
        engine.add_request("1", "p", None)
    assert engine.seen[0]["traceparent"].endswith("-00")


def test_version_without_the_parameter_is_one_warning(
    tracing: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The method stays as it is."""
    module: Any = ModuleType("vllm.v1.engine.async_llm")

    class AsyncLLM:
        def __init__(self) -> None:
            self.observability_config = None

        def _run_output_handler(self) -> None: ...

        def add_request(self, request_id: str) -> str:
            return request_id

    module.AsyncLLM = AsyncLLM
    seams.patch((".engines",), module)
    assert AsyncLLM().add_request("1") == "1"
    assert len(caplog.messages) == 1
    assert "trace_headers" in caplog.messages[0]


async def test_task_of_all_requests_is_in_no_trajectory(engine_class: Any) -> None:
    """vLLM starts it with the first request, and would put requests without headers below that one."""
    engine = engine_class(ENDPOINT)
    with rollout_trace_attr(step=1) as trajectory:
        engine._run_output_handler()
        handler = engine.output_handler
        engine._run_output_handler()
        assert trace.get_current_span() is trajectory.root
    assert engine.output_handler is handler
    assert await handler is trace.INVALID_SPAN


# --- Warnings at an engine's construction -------------------------------------------------------------------


def test_tracing_engine_without_statistics_is_one_warning(
    engine_class: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM makes spans from statistics, and dies without; nothing of the configuration is changed."""
    engine_class(None, log_stats=False)
    engine_class(ENDPOINT)
    assert caplog.messages == []
    engines = [engine_class(ENDPOINT, log_stats=False) for _ in range(2)]
    (warning,) = caplog.messages
    assert "will die at its first request" in warning
    assert "disable_log_stats=False" in warning
    assert "actor_rollout_ref.rollout.disable_log_stats=False" in warning
    assert [engine.log_stats for engine in engines] == [False, False]
    assert engines[0].observability_config.otlp_traces_endpoint == ENDPOINT


@given(st.integers(0, 1 << 32), st.integers(0, 600), st.integers(0, 1 << 32))
def test_seeded_generator_is_recognised_without_a_draw(seed: int, draws: int, other: int) -> None:
    """Up to some six hundred draws after the seeding; another seed is none."""
    state = random.getstate()
    try:
        random.seed(seed)
        for _ in range(draws):
            random.getrandbits(32)
        seeded = random.getstate()
        assert engines.was_seeded(seed)
        assert engines.was_seeded(other) == (other == seed)
        assert random.getstate() == seeded
        random.seed()
        assert not engines.was_seeded(seed)
    finally:
        random.setstate(state)


class OwnIds(RandomIdGenerator):
    """A generator that the application has chosen."""


@pytest.mark.parametrize(
    ("provider", "warned"),
    [(None, False), (TracerProvider(), True), (TracerProvider(id_generator=OwnIds()), False)],
)
def test_ids_that_repeat_are_one_warning(
    engine_class: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    provider: Any,
    warned: bool,
) -> None:
    """Only where the SDK's default generator makes ids; it draws from the generator that vLLM has seeded."""
    if provider is not None:
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    state = random.getstate()
    try:
        engine_class(None, seed=3)
        random.seed(3)
        assert caplog.messages == []
        engine_class(None, seed=3)
        engine_class(None, seed=3)
    finally:
        random.setstate(state)
    assert ["ids of earlier runs" in message for message in caplog.messages] == [True] * warned


# --- The variable that vLLM sets ----------------------------------------------------------------------------


class Exporting:
    """Stands for an engine that tells its workers its endpoint, as vLLM does."""

    def __init__(self, vllm_config: Any, log_stats: bool = True) -> None:
        os.environ[engines.VARIABLE] = vllm_config.observability_config.otlp_traces_endpoint or ""


@pytest.mark.parametrize(
    ("endpoint", "given"), [(ENDPOINT, None), (ENDPOINT, "http://h:4318/v1/traces"), (None, None)]
)
def test_endpoint_of_the_engine_is_not_taken_for_the_runs_target(
    tracing: None, monkeypatch: pytest.MonkeyPatch, endpoint: str | None, given: str | None
) -> None:
    """A variable that the user has set stays one; the run is decided before vLLM replaces it."""
    monkeypatch.setenv(engines.VARIABLE, given or "")
    monkeypatch.setenv(NAMES_VARIABLE, "OTHER")
    module: Any = ModuleType("vllm.v1.engine.async_llm")
    module.AsyncLLM = subclass(Exporting, "AsyncLLM")
    seams.patch((".engines",), module)
    config = SimpleNamespace(observability_config=SimpleNamespace(otlp_traces_endpoint=endpoint))
    module.AsyncLLM(vllm_config=config)
    seen = without_receiver({**os.environ, "OTHER": "1", "MINE": "1"})
    assert "OTHER" not in seen
    assert "MINE" in seen
    assert (engines.VARIABLE in seen) == (endpoint is None or given is not None)


# --- Requests -----------------------------------------------------------------------------------------------


def test_request_is_recorded_when_it_ends_in_the_trajectory_that_made_it(
    processor_class: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The engine ends it outside, and knows no times without statistics."""
    processor = processor_class()
    for name in ("first", "second"):
        with rollout_trace_attr(step=1, name=name):
            processor.add_request(request(name))
    processor.add_request(request("outside"))
    for name in ("second", "outside", "first"):
        processor.finish(name)
    spans = recorded()
    for name in ("first", "second"):
        trace_id = next(span.span.trace_id for span in spans if span.name == name)
        own = [span for span in spans if span.span.trace_id == trace_id]
        assert tree(own) == {name: ["llm_request"]}
        assert {span.attributes.get("gen_ai.request.id", name) for span in own} == {name}
    assert len(spans) == 4
    assert not state.requests[processor]


def test_embedding_and_further_input_are_no_request(
    processor_class: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """A request with a stream of inputs is added several times."""
    processor = processor_class()
    with rollout_trace_attr(step=1):
        processor.add_request(request("embedding", is_embedding=True))
        processor.add_request(request("1"))
        processor.add_request(request("1"))
    processor.finish("1")
    assert [span.name for span in recorded()].count("llm_request") == 1


def test_request_that_vllm_traces_is_recorded_only_if_it_fails(
    processor_class: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """vLLM makes no span of an aborted request."""
    processor = processor_class(tracing_enabled=True)
    with rollout_trace_attr(step=1):
        for name in ("finished", "aborted"):
            processor.add_request(request(name, {"traceparent": "…"}))
    processor.finish("finished")
    assert processor.abort_requests(["unknown", "aborted"]) == ["aborted"]
    found = [span for span in recorded() if span.name == "llm_request"]
    assert [span.attributes["gen_ai.request.id"] for span in found] == ["aborted"]
    assert found[0].attributes["error.type"] == "aborted"


def test_request_of_which_vllm_dies_is_an_error(
    processor_class: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """Without statistics vLLM cannot make its span, when the request has finished already."""
    processor = processor_class(tracing_enabled=True)
    with rollout_trace_attr(step=1):
        processor.add_request(request("1", {"traceparent": "…"}))
    processor.request_states["1"].stats = None
    processor.finish("1")
    assert [span.name for span in recorded()] == ["rollout_trace"]
    processor.propagate_error(AssertionError())
    (found,) = [span for span in recorded() if span.name == "llm_request"]
    assert found.attributes["error.type"] == "AssertionError"


def test_requests_that_fail_are_errors(
    processor_class: Any, recorded: Callable[[], list[Recorded]], tracing: None
) -> None:
    """One that the engine could not answer, and all of an engine that dies."""
    processor = processor_class()
    with rollout_trace_attr(step=1):
        for name in ("1", "2", "3"):
            processor.add_request(request(name))
    processor.finish("1", "error")
    processor.propagate_error(OSError("the core has died"))
    found = {span.attributes["gen_ai.request.id"]: span for span in recorded() if span.name == "llm_request"}
    assert [span.span.status.code for span in found.values()] == [2, 2, 2]
    assert found["1"].attributes["error.type"] == "error"
    assert found["3"].span.status.message == "OSError: the core has died"


def test_step_that_fails_raises_as_before(
    processor_class: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The exception is the core's own, and the open requests are errors."""
    module: Any = ModuleType("vllm.v1.engine.llm_engine")
    module.LLMEngine = subclass(Engine, "LLMEngine")
    seams.patch((".engines",), module)
    engine = module.LLMEngine(None)
    engine.output_processor = processor_class()
    with rollout_trace_attr(step=1):
        engine.output_processor.add_request(request("1"))
        with pytest.raises(OSError, match="the core has died"):
            engine.step()
    (found,) = [span for span in recorded() if span.name == "llm_request"]
    assert found.span.status.code == 2


def test_open_requests_are_bounded_and_go_with_their_engine(
    processor_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that never ends a request does not fill the memory."""
    monkeypatch.setattr(engines, "MAX_OPEN", 3)
    processor = processor_class()
    with rollout_trace_attr(step=1):
        for number in range(10):
            processor.add_request(request(str(number)))
    assert list(state.requests[processor]) == ["7", "8", "9"]
    del processor
    assert len(state.requests) == 0


def test_missing_seam_is_one_warning_and_the_rest_is_patched(
    tracing: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names what this version lacks, and what is not traced."""
    module: Any = ModuleType("vllm.v1.engine.output_processor")
    methods = {**vars(subclass(OutputProcessor, "OutputProcessor"))}
    del methods["abort_requests"]
    module.OutputProcessor = type("OutputProcessor", (), methods)
    seams.patch((".engines",), module)
    assert caplog.messages == [
        f"otel-rollout: vllm {seams.version} has no "
        "vllm.v1.engine.output_processor.OutputProcessor.abort_requests, so requests that are aborted in "
        "vLLM's engine are not traced; the rest is traced."
    ]
    assert module.OutputProcessor.add_request is not OutputProcessor.add_request
