"""Let LiteLLM's proxy record the model calls of agents that are handed a base URL and a key alone.

LiteLLM's own OpenTelemetry callback makes and exports the spans. This module tells it the trajectory: the
agent's key (:func:`otel_rollout.trajectory_key`) names it. The proxy's configuration names two objects::

    litellm_settings:
      callbacks: ["otel", "otel_rollout.integrations.litellm_proxy.engine_headers"]
    general_settings:
      custom_auth: otel_rollout.integrations.litellm_proxy.authenticate
      custom_auth_run_common_checks: true

docs/black-box-agents.md has the whole configuration. Only the proxy imports this module.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final

from fastapi import HTTPException, Request
from litellm.integrations.custom_logger import CustomLogger
from litellm.integrations.otel.plumbing.context import set_request_root_span
from litellm.proxy import proxy_server
from litellm.proxy._types import LitellmUserRoles, UserAPIKeyAuth
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.base import trajectory_key

_UNAUTHORIZED: Final = 401
_ROUTES: Final = ["llm_api_routes"]
"""LiteLLM's name of the routes that an agent may use: those that ask a model."""
_propagator: Final = TraceContextTextMapPropagator()
_logger = logging.getLogger("otel_rollout.litellm_proxy")


async def authenticate(request: Request, api_key: str) -> UserAPIKeyAuth:
    """Admit a request whose key names a trajectory, and put its model calls below that trajectory.

    Raises:
        HTTPException: the key was not made with this proxy's master key.
    """
    traceparent = trajectory_key.traceparent_of(api_key or "", proxy_server.master_key or "")
    if traceparent is None:
        raise HTTPException(_UNAUTHORIZED, "this key belongs to no trajectory")
    above = _span_of(traceparent)
    sent = _span_of(request.headers.get("traceparent", ""))
    if sent.get_span_context().trace_id == above.get_span_context().trace_id:
        above = sent  # the agent's own span, which it says by itself
    set_request_root_span(above)
    return UserAPIKeyAuth(
        api_key=api_key,
        user_role=LitellmUserRoles.INTERNAL_USER,
        allowed_routes=_ROUTES,
        parent_otel_span=above,
    )


def _span_of(traceparent: str) -> trace.Span:
    return trace.get_current_span(_propagator.extract({"traceparent": traceparent}))


class EngineHeaders(CustomLogger):  # type: ignore[misc]  # LiteLLM has no types where mypy runs
    """Sends the ``traceparent`` of a model call to the engine, whose spans are then below the call."""

    def log_pre_api_call(self, model: str, messages: Any, kwargs: dict[str, Any]) -> None:
        """Add the header, right before LiteLLM asks the engine. Never raises."""
        try:
            span, headers = _call_span(kwargs), _headers(kwargs.get("additional_args") or {})
            if span is not None and headers is not None:
                _propagator.inject(headers, trace.set_span_in_context(span))
        except Exception:  # the request goes out without the header
            _logger.exception("otel-rollout: the engine gets no traceparent")


def _call_span(kwargs: dict[str, Any]) -> trace.Span | None:
    """Return the span that LiteLLM has begun for a call."""
    calls = getattr(proxy_server.open_telemetry_logger, "_open_llm_calls", {})
    return getattr(calls.get(kwargs.get("litellm_call_id")), "span", None)


def _headers(arguments: dict[str, Any]) -> MutableMapping[str, str] | None:
    """Return the headers of a request that is about to be sent, as a mapping to change."""
    if arguments.get("openai_sdk"):  # LiteLLM's other entry holds a copy there
        headers = arguments["complete_input_dict"].setdefault("extra_headers", {})
    else:
        headers = arguments.get("headers")
    return headers if isinstance(headers, MutableMapping) else None


engine_headers: Final = EngineHeaders()
