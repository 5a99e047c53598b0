"""Tell the model whether its result is right: the tool of the example."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class CheckAnswerTool(BaseTool):
    """Compare a result with the trajectory's ground truth.

    The tool contains no code for tracing.
    """

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self._truths: dict[str, str] = {}

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Create an instance for one call, with the ground truth of the dataset."""
        instance_id = instance_id or uuid4().hex
        self._truths[instance_id] = str(kwargs["create_kwargs"]["ground_truth"])
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Compare one result."""
        result = str(parameters["answer"]).strip().replace(",", "")
        right = result == self._truths[instance_id]
        return ToolResponse(text="right" if right else "wrong"), 0.0, {"right": right}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Remove the instance."""
        self._truths.pop(instance_id, None)
