"""Follow verl's flag ``token2text``: show the text of an operation's token ids.

The forwarder detokenizes with the tokenizer of the object whose method is recorded, as verl's own code does.
The ids of an object without a tokenizer get no text.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import trace

from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.verl.trace_config import config
from otel_rollout.record import runtime
from otel_rollout.record.capture import span_io


def show_text(args: tuple[Any, ...]) -> bool:
    """Have the current span show text, if the flag is set. Never raises.

    Args:
        args: arguments of the recorded method, ``self`` first.

    Returns:
        Whether the span will show text.
    """
    with internal_errors("arranging for token2text"):
        if args and getattr(config(), "token2text", False):
            active, span = runtime.current(), trace.get_current_span()
            return active is not None and span.is_recording() and span_io.mark_for_text(active, span, args[0])
    return False
