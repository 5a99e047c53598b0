"""Tools with a life cycle, in a module that verl's launcher imports by name."""

from __future__ import annotations

from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class NoteTool(BaseTool):
    """A tool whose ``execute`` is decorated, as in verl's own examples."""

    @rollout_trace_op
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        return ToolResponse(text=f"noted {parameters['text']}"), 0.25, {"length": len(parameters["text"])}


class BrokenTool(BaseTool):
    """A tool that raises, and whose ``execute`` is not decorated."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        raise RuntimeError("the tool broke")
