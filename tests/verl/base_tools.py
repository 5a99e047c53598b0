"""Tools with a life cycle; a file of its own, because verl's launcher imports it by name."""

from __future__ import annotations

from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class NoteTool(BaseTool):
    """Keeps what it is told; its ``execute`` is decorated, as in verl's own examples."""

    @rollout_trace_op
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        return ToolResponse(text=f"noted {parameters['text']}"), 0.25, {"length": len(parameters["text"])}


class BrokenTool(BaseTool):
    """Raises; its ``execute`` is not decorated."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        raise RuntimeError("the tool broke")


class AddTool(BaseTool):
    """Adds two numbers, where verl takes no functions for tools."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        return ToolResponse(text=str(parameters["a"] + parameters["b"])), 0.0, {}
