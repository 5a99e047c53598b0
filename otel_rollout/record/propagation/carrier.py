"""Carry the current span, the trajectory's identity and a step's chosen rows between processes.

The carrier is a dict of text. A propagator of this module writes the span into it as W3C Trace Context,
whatever ``OTEL_PROPAGATORS`` says. The identity is one entry of JSON, since baggage would turn 7 and False
into strings. The carrier holds an unrecorded span too, with trace flags 00; without it the receiver would
start a new trace.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from typing import Final

import orjson
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.base import semconv
from otel_rollout.base.errors import fault, logger
from otel_rollout.otlp import writer
from otel_rollout.record.recording.entered import present_context
from otel_rollout.record.recording.identity import NO_IDENTITY, OUTSIDE, Identity, identity_in, with_identity
from otel_rollout.record.recording.runtime_context import span_above
from otel_rollout.record.recording.sampling import chosen_in, with_chosen

IDENTITY_KEY: Final = "otel-rollout-identity"
CHOSEN_KEY: Final = "otel-rollout-chosen"
"""Entry of a carrier with the rows of a step to record. The process that sees the whole batch chooses the
rows."""
MAX_IDENTITY_BYTES: Final = 4096
"""Maximum bytes of the identity in a carrier. In a larger one, values are cut or omitted."""
_MAX_CUT_VALUE: Final = 256
"""Maximum characters of a value in an identity that exceeds MAX_IDENTITY_BYTES; the rest is cut."""
_ESSENTIAL: Final = (semconv.STEP, semconv.SAMPLE_INDEX, semconv.ROLLOUT_N, semconv.VALIDATE)
"""Attributes by which people find trajectories. They are kept first when an identity is too large."""

_propagator: Final = TraceContextTextMapPropagator()

# These functions run for each Ray call and each submission to a pool, so their guards are written by hand.


def active_context() -> Context | None:
    """Return the current OTel context; None if it has neither a span nor chosen rows. Never raises."""
    try:
        context = present_context()
        is_inside = trace.get_current_span(context).get_span_context().is_valid
        return context if is_inside or chosen_in(context) is not None else None
    except Exception as error:  # noqa: BLE001 - another library's span may raise anything
        fault("looking for the current span", error)
        return None


def inject() -> dict[str, str] | None:
    """Return the current context as a carrier; None if there is nothing to carry. Never raises."""
    context = active_context()
    if context is None:
        return None
    try:
        carrier: dict[str, str] = {}
        span = span_above(context)
        _propagator.inject(carrier, trace.set_span_in_context(span, context))
        if span.get_span_context().trace_flags.sampled:
            identity = identity_in(context)
            if identity is not NO_IDENTITY:
                carrier[IDENTITY_KEY] = _to_json(identity)
        chosen = chosen_in(context)
        if chosen is not None:
            with contextlib.suppress(TypeError):  # JSON cannot hold these rows; the receiver samples
                carrier[CHOSEN_KEY] = orjson.dumps(list(chosen)).decode()
        return carrier
    except Exception as error:  # noqa: BLE001 - the call goes out without context
        fault("writing the context of an outgoing call", error)
        return None


def inject_span() -> dict[str, str] | None:
    """Return the current span as a carrier, without the identity. Never raises."""
    carrier = inject()
    if carrier is not None:
        carrier.pop(IDENTITY_KEY, None)
        carrier.pop(CHOSEN_KEY, None)
    return carrier


def extract(carrier: Mapping[str, str]) -> Context:
    """Return the context that a carrier describes; it may be empty. Never raises."""
    context = Context()
    try:
        context = _propagator.extract(carrier, context)
        encoded = carrier.get(IDENTITY_KEY)
        if encoded is not None:
            context = with_identity(_from_json(encoded), context)
        chosen = carrier.get(CHOSEN_KEY)
        if chosen is not None:
            context = with_chosen(frozenset(orjson.loads(chosen)), context)
    except Exception as error:  # noqa: BLE001 - the call is received without context
        fault("reading the context of an incoming call", error)
    return context


# The two caches below save work because all calls of a trajectory carry one identity.


@functools.lru_cache(maxsize=1024)
def _to_json(identity: Identity) -> str:
    encoded = _encode(identity.attributes)
    if len(encoded) <= MAX_IDENTITY_BYTES:
        return encoded
    logger.warning(
        "otel-rollout: a trajectory's identity takes %d bytes, more than the %d that travel to other "
        "processes; there, long values are cut or missing.",
        len(encoded),
        MAX_IDENTITY_BYTES,
    )
    return _shortened(identity.attributes)


def _shortened(attributes: Mapping[str, writer.AttributeInput]) -> str:
    """Return JSON of the part of an identity that fits in MAX_IDENTITY_BYTES."""
    kept: dict[str, writer.AttributeInput] = {}
    for name in sorted(attributes, key=lambda name: name not in _ESSENTIAL):
        value = attributes[name]
        kept[name] = (
            value[:_MAX_CUT_VALUE] + "…" if isinstance(value, str) and len(value) > _MAX_CUT_VALUE else value
        )
        if len(_encode(kept)) > MAX_IDENTITY_BYTES:
            del kept[name]
    return _encode(kept)


def _encode(attributes: Mapping[str, writer.AttributeInput]) -> str:
    """Return JSON in ASCII, which an HTTP header can hold."""
    return json.dumps(attributes, separators=(",", ":"), default=str)


@functools.lru_cache(maxsize=1024)
def _from_json(encoded: str) -> Identity:
    if len(encoded) > MAX_IDENTITY_BYTES:  # not written by this module
        return NO_IDENTITY
    attributes = orjson.loads(encoded)
    if not isinstance(attributes, dict):
        return NO_IDENTITY
    return Identity(attributes) if attributes else OUTSIDE
