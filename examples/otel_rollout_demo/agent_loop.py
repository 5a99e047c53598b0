"""Run the agent loop of one trajectory: generate a turn, call tools, repeat.

The loop works as verl's ToolAgentLoop. A trace shows four decorated methods (three here, one in
``parser.py``). Token ids are attributes of the loop and not arguments of these methods, so that a trace shows
each turn as a conversation. The ids are recorded once, in the result of ``run``.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypedDict

from opentelemetry import trace

from otel_rollout import rollout_trace_op
from otel_rollout.base import semconv
from otel_rollout_demo.parser import FunctionCall, HermesToolParser, ToolCallFormatError
from otel_rollout_demo.tools import Tool, ToolError, ToolResponse

if TYPE_CHECKING:
    from otel_rollout_demo.dataset import Message
    from otel_rollout_demo.server import TokenOutput
    from otel_rollout_demo.tokenizer import ChatTokenizer

MAX_ASSISTANT_TURNS: Final = 8
MAX_RESPONSE_TOKENS: Final = 1536
"""Maximum tokens of all turns together, with tool messages."""


class Choice(TypedDict):
    """A reply in OpenAI's format."""

    index: int
    finish_reason: str
    message: Message


class ChatCompletion(TypedDict):
    """A generation in the format of trace viewers, with text instead of token ids."""

    choices: list[Choice]


@dataclass(frozen=True)
class AgentLoopOutput:
    """Result of a trajectory: token ids for training, text for readers of the trace."""

    prompt_text: str
    response_text: str
    num_turns: int
    errors: list[str]  # what tools and the parser reported, in order
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]  # 1: the model wrote this token, 0: the environment did
    unparsable_calls: int = 0  # errors of the parser among them
    extra_fields: dict[str, Any] = field(default_factory=dict)


class ToolAgentLoop:
    """Run one trajectory. Each trajectory needs a new instance."""

    def __init__(self, server: Any, model_name: str, chat: ChatTokenizer, tools: list[Tool]) -> None:
        """Create a loop; ``server`` is the Ray actor handle of an ``InferenceServer``."""
        self._server = server
        self._model_name = model_name
        self._chat = chat
        self._tools = {tool.name: tool for tool in tools}
        self._parser = HermesToolParser()
        self._request_id = ""
        self._tools_kwargs: dict[str, dict[str, Any]] = {}
        self._ids: list[int] = []
        self._mask: list[int] = []
        self._errors: list[str] = []
        self._unparsable_calls = 0
        self._versions: set[int] = set()
        self.messages: list[Message] = []
        """The conversation so far."""

    @rollout_trace_op
    async def run(
        self,
        raw_prompt: list[Message],
        sampling_params: dict[str, Any],
        request_id: str,
        tools_kwargs: dict[str, dict[str, Any]],
    ) -> AgentLoopOutput:
        """Run turns from the prompt to the answer, or to the turn limit.

        Args:
            raw_prompt: The first messages.
            sampling_params: For every generation: ``temperature``, ``top_p``, ``max_tokens``.
            request_id: The trajectory's name for the server.
            tools_kwargs: Name of a tool → arguments of its ``create`` for this sample (``create_kwargs``).
        """
        self._request_id = request_id
        self._tools_kwargs = tools_kwargs
        self.messages = list(raw_prompt)
        schemas = [tool.tool_schema for tool in self._tools.values()]
        self._ids = self._chat.prompt_ids(self.messages, schemas)
        n_prompt = len(self._ids)
        turns = 0
        while turns < MAX_ASSISTANT_TURNS and len(self._mask) < MAX_RESPONSE_TOKENS:
            turns += 1
            reply = await self.generate(list(self.messages), sampling_params)
            answers = await self._answer(reply)
            if not answers:
                break
            closed = self._ids[-1] == self._chat.eos_token_id
            self._append(self._chat.turn_ids(answers, closed=closed), by_model=False)
            self.messages.extend(answers)
        return AgentLoopOutput(
            prompt_text=self._chat.decode(self._ids[:n_prompt], keep_special=True),
            response_text=self._chat.decode(self._ids[n_prompt:], keep_special=True),
            num_turns=turns,
            errors=self._errors,
            prompt_ids=self._ids[:n_prompt],
            response_ids=self._ids[n_prompt:],
            response_mask=self._mask,
            unparsable_calls=self._unparsable_calls,
            extra_fields={
                "min_global_steps": min(self._versions, default=None),
                "max_global_steps": max(self._versions, default=None),
            },
        )

    @rollout_trace_op(kind=semconv.KIND_LLM)
    async def generate(self, messages: list[Message], sampling_params: dict[str, Any]) -> ChatCompletion:
        """Have the server continue the conversation.

        Readers of the trace see ``messages``; the server gets the token ids collected so far.
        """
        output: TokenOutput = await self._server.generate.remote(
            request_id=self._request_id, prompt_ids=self._ids, sampling_params=sampling_params
        )
        ended = output.token_ids[-1:] == [self._chat.eos_token_id]
        finish_reason = "stop" if ended else "length"
        trace.get_current_span().set_attributes(
            {
                semconv.GEN_AI_OPERATION_NAME: "chat",
                semconv.GEN_AI_CONVERSATION_ID: self._request_id,
                semconv.GEN_AI_REQUEST_MODEL: self._model_name,
                semconv.GEN_AI_REQUEST_TEMPERATURE: sampling_params["temperature"],
                semconv.GEN_AI_REQUEST_TOP_P: sampling_params["top_p"],
                semconv.GEN_AI_REQUEST_MAX_TOKENS: sampling_params["max_tokens"],
                semconv.GEN_AI_USAGE_INPUT_TOKENS: len(self._ids),
                semconv.GEN_AI_USAGE_OUTPUT_TOKENS: len(output.token_ids),
                semconv.GEN_AI_RESPONSE_FINISH_REASONS: [finish_reason],
            }
        )
        self._append(output.token_ids, by_model=True)
        self._versions.add(output.extra_fields["global_steps"])
        message: Message = {"role": "assistant", "content": self._chat.decode(output.token_ids)}
        return {"choices": [{"index": 0, "finish_reason": finish_reason, "message": message}]}

    @rollout_trace_op(kind=semconv.KIND_TOOL)
    async def execute_tool(self, name: str, arguments: dict[str, Any]) -> ToolResponse:
        """Create a tool's instance, call it and release it.

        This method is decorated and not each tool's ``execute``, so that calls of unknown tools are recorded.

        Raises:
            ToolError: the tool does not exist or could not answer.
        """
        span = trace.get_current_span()
        span.update_name(f"execute_tool {name}")
        span.set_attributes({semconv.GEN_AI_OPERATION_NAME: "execute_tool", semconv.GEN_AI_TOOL_NAME: name})
        tool = self._tools.get(name)
        if tool is None:
            raise ToolError(f"there is no function '{name}'; available: {', '.join(self._tools)}")
        instance_id, _ = await tool.create(**self._tools_kwargs.get(name, {}).get("create_kwargs", {}))
        try:
            response, _, _ = await tool.execute(instance_id, arguments)
            return response
        finally:
            await tool.release(instance_id)

    def last_words(self) -> str:
        """Return the model's last text: the answer, if there is one."""
        return next((turn["content"] for turn in reversed(self.messages) if turn["role"] == "assistant"), "")

    async def _answer(self, reply: ChatCompletion) -> list[Message]:
        """Append an assistant's turn, and return the answers to it; none if it is final."""
        text = reply["choices"][0]["message"]["content"]
        try:
            turn = await self._parser.extract_tool_calls(text)
        except ToolCallFormatError as error:
            self._unparsable_calls += 1
            self.messages.append({"role": "assistant", "content": text})
            return [{"role": "tool", "content": self._error_text(error)}]
        if not turn.tool_calls:
            self.messages.append({"role": "assistant", "content": turn.content})
            return []
        ids = [f"{self._request_id}-{len(self.messages)}.{place}" for place in range(len(turn.tool_calls))]
        self.messages.append(
            {
                "role": "assistant",
                "content": turn.content,
                "tool_calls": [_openai_call(*pair) for pair in zip(ids, turn.tool_calls, strict=True)],
            }
        )
        texts = await asyncio.gather(*(self._call(call) for call in turn.tool_calls))
        return [
            {"role": "tool", "content": content, "tool_call_id": id_}
            for id_, content in zip(ids, texts, strict=True)
        ]

    async def _call(self, call: FunctionCall) -> str:
        try:
            response = await self.execute_tool(call.name, call.arguments)
        except ToolError as error:
            return self._error_text(error)
        return response.text

    def _error_text(self, error: Exception) -> str:
        self._errors.append(str(error))
        return f"Error: {error}"

    def _append(self, ids: list[int], *, by_model: bool) -> None:
        self._ids = [*self._ids, *ids]
        self._mask = [*self._mask, *([int(by_model)] * len(ids))]


def _openai_call(id_: str, call: FunctionCall) -> dict[str, Any]:
    return {
        "id": id_,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
    }
