"""What travels between processes: the current span and the trajectory's identity, in a small dict.

The span goes as W3C Trace Context, written by a propagator of our own, so that it arrives whatever
``OTEL_PROPAGATORS`` says. The identity goes in one entry of ours, as JSON: baggage would turn 7 and False
into strings. "Not recorded" travels too (trace flags 00); otherwise the receiver would begin orphan traces.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Mapping
from typing import Final

import orjson
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.base import semconv
from otel_rollout.base.errors import fault
from otel_rollout.otlp import writer
from otel_rollout.recording.identity import NO_IDENTITY, Identity, identity_in, with_identity
from otel_rollout.recording.sampling import chosen_in, with_chosen

IDENTITY_KEY: Final = "otel-rollout-identity"
CHOSEN_KEY: Final = "otel-rollout-chosen"
"""Rows of a step that are to be recorded, as somebody has chosen who has seen all of it."""
MAX_IDENTITY_BYTES: Final = 4096
"""What the identity may take in a carrier. Beyond, values are cut, then left out."""
_CUT_VALUE: Final = 256
"""Characters left of a value that had to be cut."""
_FIRST: Final = (semconv.STEP, semconv.SAMPLE_INDEX, semconv.ROLLOUT_N, semconv.VALIDATE)
"""What trajectories are found by: kept before anything else when there is too much."""

_propagator: Final = TraceContextTextMapPropagator()
_logger = logging.getLogger("otel_rollout")


def active_context() -> Context | None:
    """The current OTel context, if there is something in it to take along. Never raises."""
    try:
        context = otel_context.get_current()
        is_inside = trace.get_current_span(context).get_span_context().is_valid
        return context if is_inside or chosen_in(context) is not None else None
    except Exception as error:  # noqa: BLE001 - a span of somebody else's may do anything
        fault("looking for the current span", error)
        return None


def inject() -> dict[str, str] | None:
    """The current context as a carrier; None when nothing in it is to travel. Never raises."""
    context = active_context()
    if context is None:
        return None
    try:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, context)
        if trace.get_current_span(context).get_span_context().trace_flags.sampled:
            identity = identity_in(context)
            if identity.attributes:
                carrier[IDENTITY_KEY] = _to_json(identity)
        chosen = chosen_in(context)
        if chosen is not None:
            with contextlib.suppress(TypeError):  # JSON has no such rows: the receiver decides alone
                carrier[CHOSEN_KEY] = orjson.dumps(list(chosen)).decode()
        return carrier
    except Exception as error:  # noqa: BLE001 - the call goes out without context
        fault("writing the context of an outgoing call", error)
        return None


def inject_span() -> dict[str, str] | None:
    """The current span alone as a carrier, without the identity. Never raises."""
    carrier = inject()
    if carrier is not None:
        carrier.pop(IDENTITY_KEY, None)
        carrier.pop(CHOSEN_KEY, None)
    return carrier


def extract(carrier: Mapping[str, str]) -> Context:
    """The context that a carrier describes; an empty one if it describes none. Never raises."""
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


# Every call of a trajectory carries the same identity, so both ways are worth remembering.


@functools.lru_cache(maxsize=1024)
def _to_json(identity: Identity) -> str:
    encoded = _encode(identity.attributes)
    if len(encoded) <= MAX_IDENTITY_BYTES:
        return encoded
    _logger.warning(
        "otel-rollout: a trajectory's identity takes %d bytes, more than the %d that travel to other "
        "processes; there, long values are cut or missing.",
        len(encoded),
        MAX_IDENTITY_BYTES,
    )
    return _bounded(identity.attributes)


def _bounded(attributes: Mapping[str, writer.AttributeInput]) -> str:
    order = sorted(attributes, key=lambda name: name not in _FIRST)
    kept: dict[str, writer.AttributeInput] = {}
    for name in order:
        value = attributes[name]
        kept[name] = value[:_CUT_VALUE] + "…" if isinstance(value, str) and len(value) > _CUT_VALUE else value
        if len(_encode(kept)) > MAX_IDENTITY_BYTES:
            del kept[name]
    return _encode(kept)


def _encode(attributes: Mapping[str, writer.AttributeInput]) -> str:
    """JSON in ASCII, which an HTTP header can hold as well."""
    return json.dumps(attributes, separators=(",", ":"), default=str)


@functools.lru_cache(maxsize=1024)
def _from_json(encoded: str) -> Identity:
    if len(encoded) > MAX_IDENTITY_BYTES:  # not written by us
        return NO_IDENTITY
    attributes = orjson.loads(encoded)
    return Identity(attributes) if isinstance(attributes, dict) else NO_IDENTITY
