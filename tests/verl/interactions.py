"""A simulated user of verl before 0.8."""

from __future__ import annotations

from typing import Any

from verl.interactions.base import BaseInteraction


class Impatient(BaseInteraction):
    """A user who asks once more, and then ends the conversation."""

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        asked = [message for message in messages if message["role"] == "user"]
        if len(asked) > 1:
            return True, "Thank you.", 1.0, {}
        return False, "Once more, please.", 0.25, {}
