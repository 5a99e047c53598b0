"""``token2text``: which spans hold token ids whose text is to be shown, and by which tokenizer.

Nothing is decoded here: that is the forwarder's work (:mod:`otel_rollout.forwarder.enrichment`).
"""

from __future__ import annotations

from typing import Any

from opentelemetry.trace import Span

from otel_rollout.base import semconv
from otel_rollout.base.errors import fault
from otel_rollout.runtime import Runtime


def mark(active: Runtime, span: Span, owner: Any) -> bool:
    """Have the text of the span's token ids shown; False where there is no tokenizer. Never raises.

    Args:
        active: knows the tokenizers.
        span: the operation's.
        owner: the object with the ``tokenizer``.
    """
    try:
        name = active.tokenizers.name_of(getattr(owner, "tokenizer", None))
        if name is not None:
            span.set_attribute(semconv.TOKENIZER, name)
        return name is not None
    except Exception as error:  # noqa: BLE001 - a user's attribute
        fault("looking for a tokenizer", error)
        return False


def id_of(span: Span) -> str:
    """The id of a span whose text is shown, for what shows it too."""
    return f"{span.get_span_context().span_id:016x}"
