"""Record model calls and tool calls of TRL's asynchronous GRPO worker."""

from __future__ import annotations

import functools
import inspect
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.open_operation import OpenOperation
from otel_rollout.integrations.kit.seams import around
from otel_rollout.integrations.kit.spans import tool_call
from otel_rollout.integrations.trl.async_rollouts import Rollout, current
from otel_rollout.integrations.trl.patched_modules import LOOP, WORKER, seams

# --- model calls -------------------------------------------------------------------------------------------


@seams.around(WORKER, f"{LOOP}._generate_one_turn", "its worker's model calls are not traced")
async def _generate_one_turn(
    original: Callable[..., Any], /, self: Any, prompt_ids: Any, *args: Any, **kwargs: Any
) -> Any:
    rollout = current()
    if rollout is None:
        return await original(self, prompt_ids, *args, **kwargs)
    rollout.end_call()
    call = rollout.call = _start_call(self, rollout, prompt_ids)
    try:
        with call.inside():
            result = await original(self, prompt_ids, *args, **kwargs)
    except BaseException as error:
        rollout.call = None
        call.end(error=error)
        raise
    _describe_answer(self, rollout, call, result)
    return result


def _start_call(loop: Any, rollout: Rollout, prompt_ids: Any) -> OpenOperation:
    sent: dict[str, Any] = {"prompt_ids": prompt_ids}
    attributes: dict[str, Any] = {}
    with internal_errors("describing a model call of TRL's"):
        if rollout.messages is not None:
            sent = {"messages": rollout.messages, **sent}
        rollout.policy_versions.add(loop.model_version)
        attributes = {
            semconv.GEN_AI_OPERATION_NAME: "chat",
            semconv.GEN_AI_REQUEST_MODEL: str(loop._request_model),
            semconv.GEN_AI_REQUEST_TEMPERATURE: float(loop.temperature),
            semconv.GEN_AI_REQUEST_TOP_P: float(loop.top_p),
            semconv.GEN_AI_REQUEST_TOP_K: int(loop.top_k),
            semconv.GEN_AI_REQUEST_MAX_TOKENS: int(loop.max_tokens),
            semconv.GEN_AI_USAGE_INPUT_TOKENS: len(prompt_ids),
            semconv.POLICY_VERSION_MIN: loop.model_version,
        }
    return OpenOperation("generate", semconv.KIND_LLM, rollout.context, input=sent, attributes=attributes)


@internal_errors("recording a model's answer")
def _describe_answer(loop: Any, rollout: Rollout, call: OpenOperation, result: Any) -> None:
    ids, log_probs = result
    rollout.take_answer(ids, log_probs)
    rollout.policy_versions.add(loop.model_version)
    call.describe(
        {semconv.GEN_AI_USAGE_OUTPUT_TOKENS: len(ids), semconv.POLICY_VERSION_MAX: loop.model_version}
    )


@seams.after(WORKER, "parse_response", "its worker's model calls show token ids without messages")
def _note_message(message: Any, *_: Any, **__: Any) -> None:
    rollout = current()
    if rollout is not None:
        rollout.end_call(message)


@seams.around(
    WORKER,
    f"{LOOP}._retry",
    "its worker's model calls have no finish reason, and do not show failed attempts",
)
async def _retry(
    original: Callable[..., Any], /, self: Any, coro_factory: Any, *args: Any, **kwargs: Any
) -> Any:
    """Note the server's answer, and each failed attempt to get one, on the model call."""
    rollout = current()
    # TRL retries its own retries: only the inner ones are requests.
    if rollout is not None and rollout.call is not None and str(kwargs.get("label")).startswith("POST "):
        coro_factory = functools.partial(_attempt, rollout.call, coro_factory)
    return await original(self, coro_factory, *args, **kwargs)


async def _attempt(call: OpenOperation, request: Callable[[], Any]) -> Any:
    try:
        answer = await request()
    except Exception as error:
        call.add_failure(error)
        raise
    with internal_errors("reading the answer of TRL's inference server"):
        choices = answer.get("choices") if isinstance(answer, Mapping) else None
        if choices and choices[0].get("finish_reason"):
            call.describe({semconv.GEN_AI_RESPONSE_FINISH_REASONS: [str(choices[0]["finish_reason"])]})
    return answer


# --- tool calls --------------------------------------------------------------------------------------------


@seams.around(WORKER, f"{LOOP}._execute_tool_calls", "its worker's tool calls are not traced")
async def _execute_tool_calls(
    original: Callable[..., Any], /, self: Any, tool_calls: Any, tool_dict: Any, *args: Any, **kwargs: Any
) -> Any:
    rollout = current()
    if rollout is None:
        return await original(self, tool_calls, tool_dict, *args, **kwargs)
    calls = _ToolCalls(rollout)
    try:
        traced = calls.traced(tool_calls, tool_dict)
        result = await original(self, tool_calls, traced or tool_dict, *args, **kwargs)
    except BaseException as error:
        calls.abandon(error)
        raise
    calls.conclude(result)
    return result


class _ToolCalls:
    """The tool calls of one turn, which TRL executes one after the other."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._expected: deque[int] = deque()
        """Indexes of the calls that TRL will execute; it answers the others itself."""
        self._answered: dict[int, tuple[OpenOperation, int]] = {}
        """Index of a call that TRL answers itself → its span, and when it was reached, Unix time in ns."""
        self._next = 0
        """Index of the first call that was not reached."""
        self._calls: Any = ()
        self._open: list[OpenOperation] = []

    @internal_errors("preparing to trace tool calls")
    def traced(self, tool_calls: Any, tools: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the tools, each recording its calls; None after an error."""
        functions = [call["function"] for call in tool_calls]
        self._calls = tool_calls
        self._expected.extend(
            index
            for index, function in enumerate(functions)
            if tools.get(function["name"]) is not None and isinstance(function.get("arguments", {}), Mapping)
        )
        return {name: self._recording(name, tool) for name, tool in tools.items()}

    def _recording(self, name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
        async def call_async(_: Any, /, **arguments: Any) -> Any:
            with self._running(name, arguments) as operation:
                result = await tool(**arguments)
            operation.end(output=result)
            return result

        def call(_: Any, /, **arguments: Any) -> Any:
            with self._running(name, arguments) as operation:
                result = tool(**arguments)
            operation.end(output=result)
            return result

        return around(call_async if inspect.iscoroutinefunction(tool) else call)(tool)

    @contextmanager
    def _running(self, name: str, arguments: dict[str, Any]) -> Iterator[OpenOperation]:
        operation = self._start(name, arguments)
        try:
            with operation.inside():
                yield operation
        except BaseException as error:
            operation.end(error=error)
            raise

    def _start(self, name: str, arguments: dict[str, Any]) -> OpenOperation:
        index = self._expected.popleft() if self._expected else len(self._calls)
        self._reach(index)
        self._next = index + 1
        operation = self._operation(index, name, arguments)
        self._open.append(operation)
        return operation

    @internal_errors("recording tool calls that TRL answers itself")
    def _reach(self, end: int) -> None:
        """Start the spans of the calls before ``end`` that were not reached."""
        for index in range(self._next, end):
            function = self._calls[index]["function"]
            operation = self._operation(index, function["name"], function.get("arguments"))
            self._answered[index] = (operation, time.time_ns())
        self._next = end

    def _operation(self, index: int, name: Any, arguments: Any) -> OpenOperation:
        call_id = self._calls[index].get("id") if index < len(self._calls) else None
        span_name, attributes = tool_call(name, call_id)
        return OpenOperation(
            span_name,
            semconv.KIND_TOOL,
            self._rollout.context,
            input={"name": name, "arguments": arguments},
            attributes=attributes,
        )

    def abandon(self, error: BaseException) -> None:
        """End the running call; its thread may go on."""
        for operation in (*self._open, *(answered for answered, _ in self._answered.values())):
            operation.end(error=error)

    @internal_errors("recording tool calls")
    def conclude(self, result: Any) -> None:
        """Record the calls that TRL has answered itself, and add the answers to the conversation."""
        answers = result[0]
        self._reach(len(self._calls))
        for index, (operation, reached_ns) in self._answered.items():
            text = answers[index]["content"]
            operation.end(output=text, error=text, end_ns=reached_ns)
        self._rollout.add_messages(answers)
