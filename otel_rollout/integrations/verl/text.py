"""``token2text``: the text of an operation's token ids, beside them.

Decoding is done in a thread of ours, one for the process, and awaited, as verl does it: off the event loop,
and on disk when the operation's span is. What goes wrong costs the text and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from opentelemetry import trace

from otel_rollout import runtime, semconv
from otel_rollout.capture import spans, values
from otel_rollout.capture.guard import fault
from otel_rollout.integrations.verl import trajectory
from otel_rollout.integrations.verl.recorder import config

_executor: ThreadPoolExecutor | None = None


async def add(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Put ``prompt_text`` and ``response_text`` into the output of the current span, if that is asked for.

    Never raises, but for the cancellation of the task that awaits it.
    """
    try:
        if not getattr(config(), "token2text", False):
            return
        active, span = runtime.current(), trace.get_current_span()
        decode = getattr(getattr(args[0] if args else None, "tokenizer", None), "decode", None)
        if active is None or not span.is_recording() or not callable(decode):
            return
        ids = _token_ids(kwargs, result)
        shown = _shown(result)
        if not ids or shown is None:
            return
        loop = asyncio.get_running_loop()
        for name, tokens in ids.items():
            shown[name] = await loop.run_in_executor(_threads(), decode, tokens)
        if "response_ids" in shown:  # an agent loop's, not a model call's
            trajectory.text_is(shown["response_text"])
        encoded = values.to_json(shown, active.settings.value_limit)
        spans.put_json(span, semconv.OUTPUT_VALUE, encoded)
    except Exception as error:  # noqa: BLE001 - a user's tokenizer
        fault("decoding tokens for token2text", error)


def _token_ids(given: dict[str, Any], result: Any) -> dict[str, Any]:
    """What there is to decode: an agent loop gives ``response_ids``, a model call ``token_ids``."""
    found = {
        "prompt_text": _first(_field(result, "prompt_ids"), given.get("prompt_ids")),
        "response_text": _first(_field(result, "response_ids"), _field(result, "token_ids")),
    }
    return {name: tokens for name, tokens in found.items() if tokens is not None}


def _first(*candidates: Any) -> Any:
    return next((value for value in candidates if value is not None), None)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _shown(result: Any) -> dict[str, Any] | None:
    if isinstance(result, dict):
        return dict(result)
    if hasattr(type(result), "model_dump"):
        return dict(result.model_dump())
    return dict(vars(result)) if hasattr(result, "__dict__") else None


def _threads() -> ThreadPoolExecutor:
    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(1, thread_name_prefix="otel-rollout-token2text")
    return _executor


def _after_fork_in_child() -> None:
    global _executor
    _executor = None


os.register_at_fork(after_in_child=_after_fork_in_child)
