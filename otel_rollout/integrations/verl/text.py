"""``token2text``: the text of an operation's token ids beside them, decoded by the forwarder.

The object whose operation it is has the tokenizer, as verl has it. Where it has none there is no text.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import trace

from otel_rollout import runtime
from otel_rollout.base.errors import fault
from otel_rollout.capture import token2text
from otel_rollout.integrations.verl.recorder import config


def show(args: tuple[Any, ...]) -> bool:
    """Have the current span show ``prompt_text`` and ``response_text``, if that is asked for. Never raises.

    Args:
        args: those of the operation, its object first.
    """
    try:
        if not args or not getattr(config(), "token2text", False):
            return False
        active, span = runtime.current(), trace.get_current_span()
        return active is not None and span.is_recording() and token2text.mark(active, span, args[0])
    except Exception as error:  # noqa: BLE001
        fault("arranging for token2text", error)
        return False
