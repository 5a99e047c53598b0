"""What models' replies say of themselves is on the operation's span, without anybody's doing."""

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
    """As an SDK's objects hold it."""
    if isinstance(value, dict):
        return types.SimpleNamespace(**{name: as_object(entry) for name, entry in value.items()})
    return [as_object(entry) for entry in value] if isinstance(value, list) else value


def said(attributes: dict[str, Any]) -> tuple[Any, ...]:
    names = ("usage.input_tokens", "usage.output_tokens", "usage.cache_read.input_tokens", "response.model")
    return tuple(attributes.get(f"gen_ai.{name}") for name in (*names, "response.finish_reasons"))


@pytest.mark.parametrize("form", [lambda reply: reply, as_object], ids=["dict", "object"])
@pytest.mark.parametrize(("reply", "expected"), [(reply, rest) for reply, *rest in SAID.values()], ids=SAID)
def test_a_reply_says_what_it_took(recorded, reply, expected, form):
    """Tokens in, out and cached, the model and why it ended; what the caller gets is the reply."""
    given = form(reply)

    @rollout_trace_op
    def ask() -> Any:
        return given

    with rollout_trace_attr():
        assert ask() is given
    assert said(recorded()[0].attributes) == tuple(expected)


async def test_a_coroutines_reply_says_it_too(recorded):
    """As asynchronous clients give it."""

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
def test_a_stream_says_it_by_and_by(recorded, stream, expected):
    """What the last of its events say counts."""

    @rollout_trace_op
    def ask():
        yield from map(as_object, stream)

    with rollout_trace_attr():
        assert len(list(ask())) == len(stream)
    assert said(recorded()[0].attributes) == expected


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 1 << 63, "completion_tokens": -1}])
def test_reply_without_usable_usage_says_its_model_and_ending(recorded, usage):
    """Servers that leave the usage out answer with `null`; counts that are none are not recorded."""

    @rollout_trace_op(kind="LLM")
    def chat():
        return {**CHAT_COMPLETION, "usage": usage}

    with rollout_trace_attr():
        chat()
    span = recorded()[0]
    assert said(span.attributes) == (None, None, None, CHAT_COMPLETION["model"], ["stop", "length"])


def test_what_the_user_has_set_stays(recorded):
    """And what is missing is added."""

    @rollout_trace_op
    def ask() -> Any:
        trace.get_current_span().set_attribute("gen_ai.usage.output_tokens", 7)
        trace.get_current_span().set_attribute("gen_ai.response.model", "mine")
        return CHAT_COMPLETION

    with rollout_trace_attr():
        ask()
    assert said(recorded()[0].attributes)[:4] == (19, 7, 4, "mine")


def test_an_operation_that_passes_a_reply_on_says_nothing_of_it(recorded):
    """An agent that returns the last of its replies has not used that one's tokens alone."""

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


class Hostile:
    """Runs somebody's code at every look."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Hostile
        raise RuntimeError(f"{name} was looked at")


class Lazy:
    """Would ask a server for its usage."""

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
def test_what_is_no_reply_is_left_alone(recorded, result):
    """No attribute, no property called, nothing raised."""

    @rollout_trace_op(capture="inputs")
    def give() -> Any:
        return result

    with rollout_trace_attr():
        assert give() is result
    assert said(recorded()[0].attributes)[:3] == (None, None, None)
    assert said(recorded()[0].attributes)[4] is None


def test_a_reply_within_itself_has_an_end(recorded):
    """A circle of events ends as any other."""
    event: dict[str, Any] = {"type": "x"}
    event["message"] = event

    @rollout_trace_op(capture="inputs")
    def give() -> Any:
        return event

    with rollout_trace_attr():
        assert give() is event
    assert len(recorded()) == 2
