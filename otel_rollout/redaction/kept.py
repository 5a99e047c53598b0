"""Tell which texts stay when a line's content is replaced: names, identity, ids, kinds and finish reasons."""

from __future__ import annotations

from typing import Final

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations, model_calls
from otel_rollout.otlp.span import Span

_KEPT_KEYS: Final = frozenset(
    {
        *(*semconv.IDENTITY, semconv.AGENT_NAME, semconv.GROUP_ID, semconv.BATCH_ID, semconv.RUN_ID),
        *(semconv.SPAN_KIND, semconv.ERROR_TYPE, semconv.EXCEPTION_TYPE, semconv.SERVICE_NAME),
        *(semconv.GEN_AI_EVALUATION_NAME, semconv.SCORE_ORIGIN),
        *(semconv.SCORE_BATCH, semconv.SCORE_BATCH_NAMES, semconv.SCORE_BATCH_DATA),
    }
)
"""Attributes that stay when content is replaced, besides those of calls: names, identity, ids and kinds."""
_VALUE_KEYS: Final = (
    semconv.GEN_AI_EVALUATION_SCORE_LABEL,
    semconv.SCORE_BATCH_TEXTS,
    semconv.SCORE_PREFIX,
)
"""Attributes, or beginnings of their names, in which a text may stand for a number or a truth value."""


def keep_tool_name(span: Span) -> None:
    """Set the name of a tool that is called by its name as an attribute, since the arguments do not stay."""
    attributes = span.attributes
    is_tool = model_calls.kind_of(attributes) == semconv.KIND_TOOL
    if (
        is_tool
        and semconv.GEN_AI_TOOL_NAME not in attributes
        and (name := model_calls.called_tool(attributes, ""))
    ):
        span.replace((), {semconv.GEN_AI_TOOL_NAME: name})


def is_kept(key: str, text: str) -> bool:
    """Return whether a text stays in the attribute ``key``."""
    return (
        key in _KEPT_KEYS
        or model_calls.is_name(key)
        or (not evaluations.is_label(text) and key.startswith(_VALUE_KEYS))
    )
