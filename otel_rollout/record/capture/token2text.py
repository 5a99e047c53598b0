"""Mark spans whose token ids are shown as text.

The mark is the name of a tokenizer, with which the forwarder detokenizes the ids
(:mod:`otel_rollout.turns.line_rewriter`).
"""

from __future__ import annotations

from typing import Any

from opentelemetry.trace import Span

from otel_rollout.base import semconv
from otel_rollout.base.errors import fault
from otel_rollout.record.runtime import Runtime


def mark(active: Runtime, span: Span, owner: Any) -> bool:
    """Mark an operation's span for detokenization; return False without a tokenizer.

    Args:
        active: the runtime, which has the tokenizers.
        span: the operation's span.
        owner: the object whose ``tokenizer`` made the ids.
    """
    try:
        name = active.tokenizers.name_of(getattr(owner, "tokenizer", None))
        if name is not None:
            span.set_attribute(semconv.TOKENIZER, name)
        return name is not None
    except Exception as error:  # noqa: BLE001 - `tokenizer` may be a user's property
        fault("looking for a tokenizer", error)
        return False


def id_of(span: Span) -> str:
    """Return a span's id, by which a root names the span whose text it shows."""
    return f"{span.get_span_context().span_id:016x}"
