"""Record the spans that libraries make of the same calls in a trajectory.

``python -m tests.otlp.foreign_spans [library …]`` writes the files in ``foreign`` anew, in an environment
that has the libraries; it skips the libraries that are missing. Each file holds lines as the recorder wrote
them, with ids, times and paths replaced by fixed ones. Each library runs in a process of its own, since each
patches its client.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.otlp.model_server import model_server

DIRECTORY = Path(__file__).with_name("foreign")
_START_NS = 1_700_000_000_000_000_000
_WAIT_SECONDS = 1.0
QUESTION = "How warm is it in Oslo?"
RULES = "Answer in one sentence."
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
    "required": ["city", "unit"],
}
TOOL = {"name": "weather", "description": "Measure the temperature.", "parameters": PARAMETERS}
OPENAI_TOOL = {"type": "function", "function": TOOL}
LATEST = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
VARIABLES: dict[str, dict[str, str]] = {
    "opentelemetry_openai_v2": {CONTENT: "true"},
    "opentelemetry_openai_v2_latest": {**LATEST, CONTENT: "span_only"},
    "opentelemetry_openai_v2_events": {**LATEST, CONTENT: "event_only"},
    # Switched on by us, without an SDK provider: log records become events of the span.
    "opentelemetry_openai_v2_joined": {"OTEL_ROLLOUT_INSTRUMENT": "opentelemetry-instrumentation-openai-v2"},
    "opentelemetry_openai_v2_events_joined": {
        "OTEL_ROLLOUT_INSTRUMENT": "opentelemetry-instrumentation-openai-v2",
        **LATEST,
        CONTENT: "event_only",
    },
    # Else LiteLLM writes on the span around the call, which is the trajectory's root here.
    "litellm_native": {"OTEL_EXPORTER": "in_memory", "USE_OTEL_LITELLM_REQUEST_SPAN": "true"},
}


# --- what the libraries do: each function makes the same conversation ---------------------------------------


def use_openai(address: str) -> None:
    """Ask with a tool, answer it, ask as a stream, show an image, embed, fail."""
    import openai

    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "system", "content": RULES}, {"role": "user", "content": QUESTION}]
    chat = client.chat.completions.create
    asked = {"model": "local", "temperature": 0.5, "max_tokens": 64, "tools": [OPENAI_TOOL]}
    first = chat(messages=messages, **asked).choices[0].message
    messages.append(first.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "21"})
    chat(messages=messages, **asked)
    for _ in chat(messages=messages[:2], stream=True, stream_options={"include_usage": True}, **asked):
        pass
    for _ in chat(messages=messages, stream=True, stream_options={"include_usage": True}, **asked):
        pass
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    chat(model="local", messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION}, image]}])
    client.embeddings.create(model="local-embedder", input="warm")
    fail(lambda: chat(model="local", messages=[{"role": "user", "content": "please fail"}]))


def use_openai_responses(address: str) -> None:
    """Ask with instructions and a tool, answer the tool, and fail."""
    import openai

    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    create, tools = client.responses.create, [{"type": "function", **TOOL}]
    first = create(model="local", instructions=RULES, input=QUESTION, tools=tools)
    call = first.output[0].model_dump(exclude_none=True)
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "21"}
    create(
        model="local",
        instructions=RULES,
        input=[{"role": "user", "content": QUESTION}, call, result],
        tools=tools,
    )
    fail(lambda: create(model="local", input="please fail"))


def use_anthropic(address: str) -> None:
    """Ask with an image and a tool, answer the tool, ask as a stream, and fail."""
    import anthropic

    client = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
    data = {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]}
    said = [{"type": "text", "text": QUESTION}, {"type": "image", "source": data}]
    messages: list[Any] = [{"role": "user", "content": said}]
    tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": PARAMETERS}
    asked = {"model": "local", "max_tokens": 64, "system": RULES, "tools": [tool]}
    first = client.messages.create(messages=messages, **asked)
    messages.append({"role": "assistant", "content": [part.model_dump() for part in first.content]})
    result = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "21"}
    messages.append({"role": "user", "content": [result]})
    client.messages.create(messages=messages, **asked)
    with client.messages.stream(messages=messages, **asked) as stream:
        for _ in stream:
            pass
    failing = [{"role": "user", "content": "please fail"}]
    fail(lambda: client.messages.create(model="local", max_tokens=64, messages=failing))


def use_langgraph(address: str) -> None:
    """Run a graph of model and tool, whole and as a stream, and fail."""
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    @tool
    def weather(city: str, unit: str) -> str:
        """Measure the temperature."""
        return "21"

    model = ChatOpenAI(
        base_url=f"{address}/v1", api_key="none", model="local", max_retries=0, stream_usage=True
    )
    bound = model.bind_tools([weather])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([weather]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    graph.compile().invoke({"messages": [SystemMessage(RULES), HumanMessage(QUESTION)]})
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    for _ in bound.stream([HumanMessage([{"type": "text", "text": QUESTION}, image])]):
        pass
    fail(lambda: model.invoke("please fail"))


def use_litellm(address: str) -> None:
    """Ask with a tool, answer the tool, ask as a stream, and fail."""
    import litellm

    messages: list[Any] = [{"role": "system", "content": RULES}, {"role": "user", "content": QUESTION}]
    asked = {
        "model": "openai/local",
        "api_base": f"{address}/v1",
        "api_key": "none",
        "tools": [OPENAI_TOOL],
        "max_tokens": 64,
        "num_retries": 0,
    }
    first = litellm.completion(messages=messages, **asked).choices[0].message
    messages.append(first.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "21"})
    litellm.completion(messages=messages, **asked)
    for _ in litellm.completion(
        messages=messages, stream=True, stream_options={"include_usage": True}, **asked
    ):
        pass
    fail(lambda: litellm.completion(**{**asked, "messages": [{"role": "user", "content": "please fail"}]}))


def pydantic_agent(address: str, **options: Any) -> Any:
    """Return an agent of PydanticAI with a tool."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("local", provider=OpenAIProvider(base_url=f"{address}/v1", api_key="none"))
    agent = Agent(model, system_prompt=RULES, name="meteorologist", **options)

    @agent.tool_plain
    def weather(city: str, unit: str) -> str:
        """Measure the temperature."""
        return "21"

    return agent


def use_pydantic_ai(address: str) -> None:
    """Run an agent with an image and a tool, as a stream too, and fail."""
    import asyncio

    from pydantic_ai import BinaryContent

    agent = pydantic_agent(address)
    image = BinaryContent.from_data_uri(PIXEL)
    agent.run_sync([QUESTION, image])

    async def stream() -> None:
        async with agent.run_stream(QUESTION) as result:
            async for _ in result.stream_text():
                pass

    asyncio.run(stream())
    fail(lambda: agent.run_sync("please fail"))


def use_smolagents(address: str) -> None:
    """Run a tool-calling agent, and fail."""
    import smolagents

    class Weather(smolagents.Tool):
        name = "weather"
        description = "Measure the temperature."
        inputs = {  # noqa: RUF012
            "city": {"type": "string", "description": "where"},
            "unit": {"type": "string", "description": "unit"},
        }
        output_type = "string"

        def forward(self, city: str, unit: str) -> str:
            return "21"

    model = smolagents.OpenAIServerModel("local", api_base=f"{address}/v1", api_key="none")
    agent = smolagents.ToolCallingAgent([Weather()], model, verbosity_level=smolagents.LogLevel.OFF)
    agent.run(QUESTION)
    fail(lambda: model([{"role": "user", "content": [{"type": "text", "text": "please fail"}]}]))


def fail(call: Callable[[], Any]) -> None:
    """Make a call that the server refuses."""
    try:
        call()
    except Exception:  # every library has its own
        return
    raise AssertionError("the call did not fail")


# --- how the libraries are instrumented ---------------------------------------------------------------------


def _instrumentor(module: str, name: str, **options: Any) -> Callable[[Any, Any], None]:
    def instrument(tracers: Any, logs: Any) -> None:
        import importlib

        made = getattr(importlib.import_module(module), name)(**options)
        made.instrument(tracer_provider=tracers, logger_provider=logs)

    return instrument


def _not_by_hand(tracers: Any, logs: Any) -> None:
    """Leave it to ``otel_rollout.instrument()``."""


def _pydantic_natively(tracers: Any, logs: Any, **options: Any) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    Agent.instrument_all(InstrumentationSettings(tracer_provider=tracers, **options))


def _pydantic_by_openinference(tracers: Any, logs: Any) -> None:
    from openinference.instrumentation.pydantic_ai import OpenInferenceSpanProcessor

    # It changes spans at their end, so it must come before the processor that keeps them.
    kept = tracers._active_span_processor._span_processors
    tracers._active_span_processor._span_processors = ()
    tracers.add_span_processor(OpenInferenceSpanProcessor())
    for processor in kept:
        tracers.add_span_processor(processor)
    _pydantic_natively(tracers, logs)


def _litellm_natively(tracers: Any, logs: Any) -> None:
    import litellm
    from litellm.integrations.opentelemetry import OpenTelemetry, OpenTelemetryConfig

    callback = OpenTelemetry(OpenTelemetryConfig(exporter="in_memory"), tracer_provider=tracers)
    litellm.callbacks = [callback]


LIBRARIES: dict[str, tuple[Callable[[Any, Any], None], Callable[[str], None]]] = {
    "openinference_openai": (
        _instrumentor("openinference.instrumentation.openai", "OpenAIInstrumentor"),
        use_openai,
    ),
    "openinference_openai_responses": (
        _instrumentor("openinference.instrumentation.openai", "OpenAIInstrumentor"),
        use_openai_responses,
    ),
    "openinference_anthropic": (
        _instrumentor("openinference.instrumentation.anthropic", "AnthropicInstrumentor"),
        use_anthropic,
    ),
    "openinference_langchain": (
        _instrumentor("openinference.instrumentation.langchain", "LangChainInstrumentor"),
        use_langgraph,
    ),
    "openinference_litellm": (
        _instrumentor("openinference.instrumentation.litellm", "LiteLLMInstrumentor"),
        use_litellm,
    ),
    "openinference_pydantic_ai": (_pydantic_by_openinference, use_pydantic_ai),
    "openinference_smolagents": (
        _instrumentor("openinference.instrumentation.smolagents", "SmolagentsInstrumentor"),
        use_smolagents,
    ),
    "opentelemetry_openai_v2": (
        _instrumentor("opentelemetry.instrumentation.openai_v2", "OpenAIInstrumentor"),
        use_openai,
    ),
    "opentelemetry_openai_v2_latest": (
        _instrumentor("opentelemetry.instrumentation.openai_v2", "OpenAIInstrumentor"),
        use_openai,
    ),
    "opentelemetry_openai_v2_events": (
        _instrumentor("opentelemetry.instrumentation.openai_v2", "OpenAIInstrumentor"),
        use_openai,
    ),
    "opentelemetry_openai_v2_joined": (_not_by_hand, use_openai),
    "opentelemetry_openai_v2_events_joined": (_not_by_hand, use_openai),
    "openllmetry_openai": (
        _instrumentor("opentelemetry.instrumentation.openai", "OpenAIInstrumentor"),
        use_openai,
    ),
    "openllmetry_openai_responses": (
        _instrumentor("opentelemetry.instrumentation.openai", "OpenAIInstrumentor"),
        use_openai_responses,
    ),
    "openllmetry_openai_events": (
        _instrumentor("opentelemetry.instrumentation.openai", "OpenAIInstrumentor", use_attributes=False),
        use_openai,
    ),
    "openllmetry_langchain": (
        _instrumentor("opentelemetry.instrumentation.langchain", "LangchainInstrumentor"),
        use_langgraph,
    ),
    "openllmetry_openai_older": (  # 0.40, with openai 1
        _instrumentor("opentelemetry.instrumentation.openai", "OpenAIInstrumentor"),
        use_openai,
    ),
    "openllmetry_langchain_older": (  # 0.40, with langchain-openai 0.3
        _instrumentor("opentelemetry.instrumentation.langchain", "LangchainInstrumentor"),
        use_langgraph,
    ),
    "pydantic_ai_native": (_pydantic_natively, use_pydantic_ai),
    "litellm_native": (_litellm_natively, use_litellm),
}


# --- recording ----------------------------------------------------------------------------------------------

_ID: Final = re.compile(rb'(?<=Id":")[0-9a-f]{16,32}(?=")')
_UUID: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME: Final = re.compile(rb'(?<=UnixNano":")[0-9]{19}(?=")')
_VARYING: Final = (
    (re.compile(rb"127\.0\.0\.1:[0-9]+"), b"127.0.0.1:1"),
    (re.compile(rb'("server.port","value":\{"intValue":")[0-9]+'), rb"\g<1>1"),
    (re.compile(rb"(?<=Traceback \(most recent call last\):)(?:\\\\n  .*?)(?=\\\\n\S)"), b""),
    (
        re.compile(rb'("rollout.segment.id","value":\{"stringValue":")[^"]+'),
        rb"\g<1>1-0000000000000001.000001",
    ),
    (re.compile(rb'("rollout.run.id","value":\{"stringValue":")[^"]+'), rb"\g<1>run-000000000001"),
    (re.compile(rb"(?:/[\w.-]+)+/(site-packages|lib/python3)"), rb"/\1"),
)


def record(library: str) -> None:
    """Record what a library makes, in this process, and write its file."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    import otel_rollout

    instrument, use = LIBRARIES[library]
    tracers = TracerProvider()
    if "OTEL_ROLLOUT_INSTRUMENT" not in os.environ:
        trace.set_tracer_provider(tracers)
    with tempfile.TemporaryDirectory() as spool, model_server() as address:
        os.environ |= {"OTEL_ROLLOUT_SPOOL_DIR": spool, "OTEL_TRACES_EXPORTER": "spool"}
        otel_rollout.configure(project_name="agents", experiment_name=library)
        otel_rollout.instrument()
        with otel_rollout.rollout_trace_attr(step=1, sample_index=7, rollout_n=0):
            instrument(tracers, None)
            use(address)
            time.sleep(_WAIT_SECONDS)  # LiteLLM ends spans in a thread of its own
        otel_rollout.shutdown()
        lines = [
            line for path in Path(spool).glob("*/*/*.jsonl") for line in path.read_bytes().splitlines(True)
        ]
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / f"{library}.jsonl").write_bytes(normalized(b"".join(lines)))


def normalized(lines: bytes) -> bytes:
    """Replace what differs between recordings; ids and times keep their order."""
    for pattern, fixed in _VARYING:
        lines = pattern.sub(fixed, lines)
    ids = {found: b"%0*x" % (len(found), number) for number, found in enumerate(_unique(_ID, lines), start=1)}
    uuids = {
        found: b"00000000-0000-0000-0000-%012x" % n for n, found in enumerate(_unique(_UUID, lines), start=1)
    }
    times = {
        found: b"%d" % (_START_NS + n * 1_000_000) for n, found in enumerate(sorted(_unique(_TIME, lines)))
    }
    lines = _ID.sub(lambda match: ids[match[0]], lines)
    lines = _UUID.sub(lambda match: uuids[match[0]], lines)
    return _TIME.sub(lambda match: times[match[0]], lines)


def _unique(pattern: re.Pattern[bytes], lines: bytes) -> list[bytes]:
    return list(dict.fromkeys(pattern.findall(lines)))


def main(libraries: list[str]) -> None:
    """Record the named libraries, or all that are installed."""
    for library in libraries or LIBRARIES:
        environment = {**os.environ, **VARIABLES.get(library, {})}
        command = [sys.executable, "-c", f"from tests.otlp.foreign_spans import record; record({library!r})"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        sys.stdout.write(f"{library}: {'recorded' if done.returncode == 0 else done.stderr[-600:]}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
