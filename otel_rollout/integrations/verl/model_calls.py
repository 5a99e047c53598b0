"""Describe a model call's request and response on its span."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.trace import Span

from otel_rollout.base import semconv
from otel_rollout.integrations.kit.spans import set_attributes
from otel_rollout.integrations.verl import trajectory

_INTERRUPTED: Final = ("abort", "aborted")
"""Stop reasons of an answer that the engine interrupted, to update its weights."""


def describe_request(span: Span, client: Any, arguments: dict[str, Any]) -> None:
    """Set the attributes of a request.

    Args:
        span: span of the model call.
        client: object whose ``generate`` is called.
        arguments: the call's keyword arguments.
    """
    sampling = arguments.get("sampling_params") or {}
    attributes = {
        semconv.GEN_AI_OPERATION_NAME: "text_completion",
        semconv.GEN_AI_REQUEST_MODEL: _model_of(client),
        semconv.GEN_AI_REQUEST_TEMPERATURE: _number(sampling.get("temperature")),
        semconv.GEN_AI_REQUEST_TOP_P: _number(sampling.get("top_p")),
        semconv.GEN_AI_REQUEST_TOP_K: _number(sampling.get("top_k")),
        semconv.GEN_AI_REQUEST_MAX_TOKENS: sampling.get("max_tokens", sampling.get("max_new_tokens")),
        semconv.GEN_AI_USAGE_INPUT_TOKENS: _length(arguments.get("prompt_ids")),
    }
    set_attributes(span, attributes)


def describe_response(span: Span, output: Any) -> None:
    """Set the attributes of a response, and note its policy versions.

    Args:
        span: span of the model call.
        output: verl's ``TokenOutput``, or a list of token ids.
    """
    extra = getattr(output, "extra_fields", None) or {}
    reason = getattr(output, "stop_reason", None)
    oldest, newest = _policy_versions(extra)
    attributes = {
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: _length(getattr(output, "token_ids", output)),
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: None if reason is None else [str(reason)],
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: extra.get("num_cached_tokens"),
        semconv.NUM_PREEMPTED: getattr(output, "num_preempted", None),
        semconv.POLICY_VERSION_MIN: oldest,
        semconv.POLICY_VERSION_MAX: newest,
    }
    set_attributes(span, attributes)
    trajectory.note_policy_versions(oldest, newest)


def describe_attempt(span: Span, output: Any, tokens: int) -> None:
    """Record an event if an attempt to answer was interrupted, and note its policy versions.

    Args:
        span: span of the model call.
        output: verl's ``TokenOutput`` of the attempt.
        tokens: tokens of the answer so far, those of earlier attempts included.
    """
    oldest, newest = _policy_versions(getattr(output, "extra_fields", None) or {})
    trajectory.note_policy_versions(oldest, newest)
    if getattr(output, "stop_reason", None) in _INTERRUPTED:
        facts = {semconv.GEN_AI_USAGE_OUTPUT_TOKENS: tokens, semconv.POLICY_VERSION_MAX: newest}
        span.add_event(semconv.INTERRUPTION, {name: fact for name, fact in facts.items() if fact is not None})


def _policy_versions(extra: dict[str, Any]) -> tuple[Any, Any]:
    """Return the oldest and the newest version; verl before 0.9 gives one version instead of a range."""
    version = extra.get("global_steps")
    oldest, newest = extra.get("min_global_steps"), extra.get("max_global_steps")
    return version if oldest is None else oldest, version if newest is None else newest


def _model_of(client: Any) -> str | None:
    try:
        return str(client.config.actor_rollout_ref.model.path)
    except Exception:  # noqa: BLE001 - a user's client, or another version's
        return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _length(value: Any) -> int | None:
    return len(value) if hasattr(value, "__len__") else None
