"""Models' replies give operations token usage, model and finish reason."""

import types
from typing import Any

import pytest
from opentelemetry import trace

from otel_rollout import rollout_trace_attr, rollout_trace_op

CHAT_COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
    "object": "chat.completion",
    "created": 1741569952,
    "model": "gpt-4.1-2025-04-14",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "content": "Hi!"}, "finish_reason": "length"},
    ],
    "usage": {
        "prompt_tokens": 19,
        "completion_tokens": 10,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
    },
}
RESPONSE: dict[str, Any] = {
    "id": "resp_67ccd3a9da748190baa7f1570fe91ac604becb25c45c1d41",
    "object": "response",
    "status": "completed",
    "model": "gpt-4o-2024-08-06",
    "output": [],
    "usage": {
        "input_tokens": 328,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 52,
        "total_tokens": 380,
    },
}
MESSAGE: dict[str, Any] = {
    "id": "msg_013Zva2CMHLNnXjNJJKqJ2EF",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-20250514",
    "content": [{"type": "text", "text": "Hi!"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 2095,
        "output_tokens": 503,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 5,
    },
}
SAID = {
    "chat completion": (CHAT_COMPLETION, 19, 10, 4, "gpt-4.1-2025-04-14", ["stop", "length"]),
    "response": (RESPONSE, 328, 52, 0, "gpt-4o-2024-08-06", None),
    "message": (MESSAGE, 2200, 503, 5, "claude-opus-4-20250514", ["end_turn"]),  # with what is cached
}


def as_object(value: Any) -> Any:
    """Return a reply as an SDK's object."""
    if isinstance(value, dict):
        return types.SimpleNamespace(**{name: as_object(entry) for name, entry in value.items()})
    return [as_object(entry) for entry in value] if isinstance(value, list) else value


def said(attributes: dict[str, Any]) -> tuple[Any, ...]:
    names = ("usage.input_tokens", "usage.output_tokens", "usage.cache_read.input_tokens", "response.model")
    return tuple(attributes.get(f"gen_ai.{name}") for name in (*names, "response.finish_reasons"))


@pytest.mark.parametrize("form", [lambda reply: reply, as_object], ids=["dict", "object"])
@pytest.mark.parametrize(("reply", "expected"), [(reply, rest) for reply, *rest in SAID.values()], ids=SAID)
def test_usage_of_a_reply_is_recorded(recorded, reply, expected, form):
    """The span has tokens in, out and cached, model and finish reason.

    The caller gets the reply.
    """
    given = form(reply)

    @rollout_trace_op
    def ask() -> Any:
        return given

    with rollout_trace_attr():
        assert ask() is given
    assert said(recorded()[0].attributes) == tuple(expected)


@pytest.mark.parametrize(
    ("usage", "name", "tokens"),
    [
        ({"completion_tokens_details": {"reasoning_tokens": 7}}, "usage.reasoning.output_tokens", 7),
        ({"output_tokens_details": {"reasoning_tokens": 0}}, "usage.reasoning.output_tokens", 0),
        ({"output_tokens_details": None}, "usage.reasoning.output_tokens", None),
        ({"cache_creation_input_tokens": 100}, "usage.cache_write.input_tokens", 100),
    ],
)
def test_further_counts_of_a_reply_are_recorded(recorded, usage, name, tokens):
    """Tokens of reasoning (OpenAI), and tokens written into a cache (Anthropic)."""
    with rollout_trace_attr():
        rollout_trace_op(lambda: {**CHAT_COMPLETION, "usage": {**CHAT_COMPLETION["usage"], **usage}})()
    assert recorded()[0].attributes.get(f"gen_ai.{name}") == tokens


async def test_usage_of_a_coroutines_reply_is_recorded(recorded):
    """Asynchronous clients return such replies."""

    @rollout_trace_op(kind="LLM")
    async def ask() -> Any:
        return as_object(MESSAGE)

    async with rollout_trace_attr():
        await ask()
    assert said(recorded()[0].attributes)[:2] == (2200, 503)


CHUNKS = [
    {"object": "chat.completion.chunk", "model": "gpt-4.1", "choices": [{"delta": {"content": "Hi"}}]},
    {
        "object": "chat.completion.chunk",
        "model": "gpt-4.1",
        "choices": [{"delta": {}, "finish_reason": "stop"}],
        "usage": None,
    },
    {"model": "gpt-4.1", "choices": [], "usage": {"prompt_tokens": 19, "completion_tokens": 10}},
]
EVENTS = [
    {"type": "message_start", "message": {**MESSAGE, "stop_reason": None}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 15}},
    {"type": "message_stop"},
]
RESPONDING = [
    {"type": "response.created", "response": {**RESPONSE, "usage": None}},
    {"type": "response.completed", "response": RESPONSE},
]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (CHUNKS, (19, 10, None, "gpt-4.1", ["stop"])),
        (EVENTS, (2200, 15, 5, "claude-opus-4-20250514", ["max_tokens"])),
        (RESPONDING, (328, 52, 0, "gpt-4o-2024-08-06", None)),
    ],
    ids=["OpenAI's chunks", "Anthropic's events", "OpenAI's events"],
)
def test_usage_of_a_stream_is_recorded_from_its_last_events(recorded, stream, expected):
    """The values of later events replace those of earlier ones."""

    @rollout_trace_op
    def ask():
        yield from map(as_object, stream)

    with rollout_trace_attr():
        assert len(list(ask())) == len(stream)
    assert said(recorded()[0].attributes) == expected


NO_USAGE = [None, {}, {"prompt_tokens": 1 << 63, "completion_tokens": -1}]


@pytest.mark.parametrize("usage", [*({"usage": each} for each in NO_USAGE), {}], ids=str)
def test_reply_without_usage_has_model_and_finish_reason(recorded, usage):
    """Servers that do not count answer with `null`, or leave the field out.

    Invalid counts are not recorded.
    """

    @rollout_trace_op(kind="LLM")
    def chat():
        return {name: CHAT_COMPLETION[name] for name in CHAT_COMPLETION if name != "usage"} | usage

    with rollout_trace_attr():
        chat()
    span = recorded()[0]
    assert said(span.attributes) == (None, None, None, CHAT_COMPLETION["model"], ["stop", "length"])


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"type": "message", "model": "m", "content": [], "stop_reason": "max_tokens"}, "max_tokens"),
        (
            {"object": "response", "model": "m", "output": [], "usage": {"output_tokens": 3},
             "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            "max_output_tokens",
        ),
    ],
    ids=["Anthropic", "Responses"],
)  # fmt: skip
def test_cut_reply_of_every_api_has_its_reason(recorded, reply, reason):
    """Metrics count cut replies by the attribute."""

    @rollout_trace_op(kind="LLM")
    def chat():
        return reply

    with rollout_trace_attr():
        chat()
    assert said(recorded()[0].attributes)[3:] == ("m", [reason])


def test_usage_set_by_the_user_stays(recorded):
    """Only missing attributes are added."""

    @rollout_trace_op
    def ask() -> Any:
        trace.get_current_span().set_attribute("gen_ai.usage.output_tokens", 7)
        trace.get_current_span().set_attribute("gen_ai.response.model", "mine")
        return CHAT_COMPLETION

    with rollout_trace_attr():
        ask()
    assert said(recorded()[0].attributes)[:4] == (19, 7, 4, "mine")


def test_operation_that_passes_a_reply_on_has_no_usage(recorded):
    """An agent that returns its last reply has used the tokens of all replies."""

    @rollout_trace_op
    def ask() -> Any:
        return CHAT_COMPLETION

    @rollout_trace_op
    def agent() -> Any:
        return [ask() for _ in range(3)][-1]

    with rollout_trace_attr():
        agent()
    *_, root = spans = recorded()
    assert [said(s.attributes)[0] for s in spans if s is not root] == [19, 19, 19, None]


def test_model_call_around_another_one_has_the_usage_of_its_own_reply(recorded):
    """Its id, else its counts, tell a reply from those below; a reply passed on has none."""
    inner = {"model": "small", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    @rollout_trace_op(kind="LLM")
    def ask(reply: Any) -> Any:
        return reply

    @rollout_trace_op(kind="LLM")
    def ask_around(replies: list[Any], own: Any) -> Any:
        for reply in replies:
            ask(reply)
        return own

    with rollout_trace_attr():
        ask_around([inner], CHAT_COMPLETION)
        ask_around([inner, CHAT_COMPLETION, {**inner, "id": "b"}], {**CHAT_COMPLETION, "object": "wrapped"})
        ask_around([inner] * 3, {**inner, "usage": {"prompt_tokens": 9, "completion_tokens": 6}})
        ask_around([{**inner, "id": str(n)} for n in range(70)], {**inner, "id": "3"})
    outer = [span for span in recorded() if span.name.endswith("ask_around")]
    assert [said(span.attributes)[0] for span in outer] == [19, None, 9, None]


class Hostile:
    """Runs foreign code on every attribute access."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Hostile
        raise RuntimeError(f"{name} was looked at")


class Lazy:
    """Has a property that would ask a server for the usage."""

    @property
    def usage(self) -> Any:
        pytest.fail("a property was called")


NO_REPLIES = [
    {},
    {"usage": 3, "model": 4, "choices": "abc"},
    {"usage": {"prompt_tokens": "many", "output_tokens": -1, "input_tokens": True}},
    {"usage": {}, "choices": [None, 1, {"finish_reason": 3}]},
    {"type": "x", "message": {"type": "x", "message": {}}},
    Lazy(),
    Hostile(),
    object(),
    len,
    int,
    types,
]


@pytest.mark.parametrize("result", NO_REPLIES, ids=[type(result).__name__ for result in NO_REPLIES])
def test_result_that_is_no_reply_is_not_touched(recorded, result):
    """No attribute is set, no property is called, nothing is raised."""

    @rollout_trace_op(capture="inputs")
    def give() -> Any:
        return result

    with rollout_trace_attr():
        assert give() is result
    assert said(recorded()[0].attributes)[:3] == (None, None, None)
    assert said(recorded()[0].attributes)[4] is None


def test_reply_that_contains_itself_ends(recorded):
    """A circle of events is read once."""
    event: dict[str, Any] = {"type": "x"}
    event["message"] = event

    @rollout_trace_op(capture="inputs")
    def give() -> Any:
        return event

    with rollout_trace_attr():
        assert give() is event
    assert len(recorded()) == 2


def test_reply_has_its_id(recorded):
    """An engine knows the request by it, and the span of the call has it also without content."""
    rollout_trace_op(name="ask", kind="LLM")(lambda: CHAT_COMPLETION)()
    rollout_trace_op(name="ask", kind="LLM")(lambda: {**CHAT_COMPLETION, "id": 7})()
    first, second = (span.attributes for span in recorded() if span.name == "ask")
    assert first["gen_ai.response.id"] == CHAT_COMPLETION["id"]
    assert "gen_ai.response.id" not in second
