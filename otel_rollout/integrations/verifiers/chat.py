"""Show verifiers' messages as OpenAI's chat messages."""

from __future__ import annotations

from typing import Any


def ns(seconds: float) -> int:
    """Convert Unix time from seconds to nanoseconds."""
    return int(seconds * 1e9)


def prompt_of(data: Any) -> list[dict[str, Any]] | None:
    """Return a task's prompt as messages; None if the task has none."""
    prompt = data.prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else shown(prompt or [])
    if data.system_prompt:
        messages.insert(0, {"role": "system", "content": data.system_prompt})
    return messages or None


def shown(messages: Any) -> list[dict[str, Any]]:
    """Return typed messages as OpenAI's chat messages."""
    return [_message(message) for message in messages]


def _message(message: Any) -> dict[str, Any]:
    made = {"role": message.role, "content": content_of(message)}
    for name in ("reasoning_content", "tool_call_id", "name"):
        if getattr(message, name, None) is not None:
            made[name] = getattr(message, name)
    calls = getattr(message, "tool_calls", None)
    if calls:
        made["tool_calls"] = [_call(call) for call in calls]
    return made


def declared(tools: Any) -> list[dict[str, Any]]:
    """Return typed tools as OpenAI's chat tools; tools that the provider runs stay as they are."""
    return [_tool(tool) for tool in tools]


def _tool(tool: Any) -> dict[str, Any]:
    if tool.type != "function":
        return dict(tool.model_dump(mode="json", exclude_none=True))
    function = {"name": tool_name(tool), "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _call(call: Any) -> dict[str, Any]:
    function = {"name": tool_name(call), "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def tool_name(call: Any) -> str:
    """Return the name of the tool that a call or a declaration names, with its namespace."""
    return f"{call.namespace}.{call.name}" if call.namespace else str(call.name)


def content_of(message: Any) -> Any:
    """Return a message's content: text, or its parts."""
    content = message.content
    return [part.model_dump(mode="json") for part in content] if isinstance(content, list) else content
