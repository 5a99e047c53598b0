"""Let LiteLLM's proxy record the model calls of agents that get only a base URL and a key.

LiteLLM's own OpenTelemetry callback makes and exports the spans. This module tells the callback the
trajectory, which the agent's key names (:func:`otel_rollout.trajectory_key`). The proxy's configuration names
two objects::

    litellm_settings:
      callbacks: ["otel", "otel_rollout.integrations.litellm_proxy.engine_headers"]
    general_settings:
      custom_auth: otel_rollout.integrations.litellm_proxy.authenticate
      custom_auth_run_common_checks: true

docs/agents.md has the whole configuration. Only the proxy imports this module.

Names inside LiteLLM that this module uses: ``set_request_root_span``, ``safe_set_request_parsed_body``, and
``_open_llm_calls`` of its callback. Without the last one, an engine's spans are traces of their own.
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
from litellm.proxy.common_utils.http_parsing_utils import safe_set_request_parsed_body
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.base import trajectory_key
from otel_rollout.integrations import model_request_fields

_BAD_REQUEST: Final = 400
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_ASKING: Final = (
    "/chat/completions",
    "/completions",
    "/messages",
    "/messages/count_tokens",
    "/responses",
    "/embeddings",
)
_ROUTES: Final = {
    **{prefix + path: "POST" for path in _ASKING for prefix in ("", "/v1")},
    **dict.fromkeys(("/models", "/v1/models"), "GET"),
}
"""The routes that an agent may use, each with its method: those that ask a model, and the models' names."""
_CONTROL_HEADERS: Final = (b"x-litellm-", b"litellm-")
"""Beginnings of the headers that steer LiteLLM: ids of calls, redaction, callbacks, retries."""
_QUERIES: Final = frozenset({"beta"})
"""Names allowed in a model request's query string. Claude Code sends this one. LiteLLM obeys other names."""
_propagator: Final = TraceContextTextMapPropagator()
_logger = logging.getLogger("otel_rollout.litellm_proxy")


async def authenticate(request: Request, api_key: str) -> UserAPIKeyAuth:
    """Admit a request whose key names a trajectory, and put its model calls below that trajectory.

    Raises:
        HTTPException: the key was not made with this proxy's master key, the route asks no model, or the body
            is no request of one model.
    """
    traceparent = trajectory_key.traceparent_of(api_key or "", proxy_server.master_key or "")
    if traceparent is None:
        raise HTTPException(_UNAUTHORIZED, "this key belongs to no trajectory")
    path = request.scope.get("path", "").removeprefix(request.scope.get("root_path", ""))
    if _ROUTES.get(path, "") != request.scope.get("method"):  # a websocket has no method, and is refused too
        raise HTTPException(_FORBIDDEN, "a trajectory's key opens only the routes that ask a model")
    _drop_controls(request)
    above = _parent(_span_of(traceparent), _span_of(request.headers.get("traceparent", "")))
    set_request_root_span(above)
    return UserAPIKeyAuth(
        api_key=api_key,
        user_role=LitellmUserRoles.INTERNAL_USER,
        allowed_routes=list(_ROUTES),
        parent_otel_span=above,
    )


def _parent(of_key: trace.Span, sent: trace.Span) -> trace.Span:
    """Return the parent of the call: the span that the agent sent if it is in the trajectory's trace.

    Otherwise the parent is the span that the key names. The key alone decides whether the call is recorded.
    """
    context, own = of_key.get_span_context(), sent.get_span_context()
    if own.trace_id != context.trace_id:
        return of_key
    return trace.NonRecordingSpan(
        trace.SpanContext(own.trace_id, own.span_id, True, context.trace_flags, context.trace_state)
    )


def _drop_controls(request: Request) -> None:
    """Remove headers and fields by which an agent could control the recording, before LiteLLM reads them.

    An example is the id of a call: LiteLLM finds a call's span by the id, and two agents can choose the same.

    Raises:
        HTTPException: the body is no JSON object, names several models, or the query string has parameters as
            well.
    """
    headers = request.scope["headers"]  # the list that ``request.headers`` reads
    headers[:] = [(name, value) for name, value in headers if not name.lower().startswith(_CONTROL_HEADERS)]
    _, body = request.scope.get("parsed_body") or ((), None)
    if not isinstance(body, dict):
        raise HTTPException(_BAD_REQUEST, "the body must be a JSON object")
    if "," in str(body.get("model")):  # LiteLLM would ask several models, and record one call
        raise HTTPException(_BAD_REQUEST, "a request names one model")
    if request.method == "POST" and not _QUERIES.issuperset(request.query_params):
        raise HTTPException(_BAD_REQUEST, "the model and its parameters belong in the body")
    safe_set_request_parsed_body(request, model_request_fields.kept(body))


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
