"""Identify the trajectory of a span, by attributes in the OpenTelemetry context.

A span below a span of our own provider inherits its parent's identity. A span with another parent (of the
application's SDK, or in another process) gets the identity from the context.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_rollout.base import semconv
from otel_rollout.otlp import writer

_HEADS: Final = {key: writer.head_of(key) for key in semconv.IDENTITY}
_KEY: Final = otel_context.create_key("otel-rollout-identity")


SUBMITTED: Final[ContextVar[otel_context.Context | None]] = ContextVar("otel-rollout-submitted", default=None)
"""OpenTelemetry's context in which the running work of a pool was submitted."""


class Identity:
    """The identity attributes of one trajectory, which do not change.

    Args:
        attributes: attribute names and values; None values are omitted.
        token2text: the trajectory's argument ``token2text``, in this process.

    Attributes:
        encoded: the attributes as in a line; None before :meth:`encode`.
    """

    __slots__ = ("attributes", "encoded", "token2text")

    def __init__(
        self, attributes: Mapping[str, writer.AttributeInput], token2text: bool | None = None
    ) -> None:
        self.token2text = token2text
        self.attributes = {key: value for key, value in attributes.items() if value is not None}
        self.encoded: bytes | None = None

    def encode(self) -> bytes:
        """Set ``encoded``, and return it. Callers do so at first use: an unrecorded trajectory needs none."""
        # No cached property: before Python 3.12 it takes a lock, which a fork may leave locked for good.
        encoded = self.encoded = b",".join([_attribute(*item) for item in self.attributes.items()])
        return encoded

    def shortened(self, longest: int) -> bytes:
        """Return the attributes as in a line, with texts cut to ``longest`` characters."""
        cut = {
            key: value[:longest] if isinstance(value, str) else value
            for key, value in self.attributes.items()
        }
        return b",".join([_attribute(*item) for item in cut.items()])

    def in_evaluator(self) -> Identity:
        """Return the identity of the spans inside an evaluation.

        They are no part of the conversation, also if the evaluation's own span is missing: it runs, or its
        process was killed.
        """
        return Identity({**self.attributes, semconv.IN_EVALUATOR: True}, self.token2text)

    @property
    def step(self) -> tuple[str, bool]:
        """The trajectory's step as in the report, and whether the step is a validation."""
        known = self.attributes
        return str(known.get(semconv.STEP, "")), bool(known.get(semconv.VALIDATE, False))


def _attribute(key: str, value: writer.AttributeInput) -> bytes:
    head = _HEADS.get(key)
    return writer.attribute(key, value) if head is None else head + writer.any_value(value) + b"}"


NO_IDENTITY: Final = Identity({})
OUTSIDE: Final = Identity({})
"""Identity of operations that are known to be outside any trajectory. A span of another program may be inside
one, and has NO_IDENTITY."""


def identity_in(context: otel_context.Context | None) -> Identity:
    """Return the trajectory's identity in a context, by default in the current one."""
    identity = otel_context.get_value(_KEY, context)
    if isinstance(identity, Identity):
        return identity
    submitted = SUBMITTED.get()
    return NO_IDENTITY if submitted is None else _identity_of_submitted(context, submitted)


def _identity_of_submitted(context: otel_context.Context | None, submitted: otel_context.Context) -> Identity:
    """Return the identity with which work was submitted, if a context is in the trace of that identity.

    Logfire carries a context to a pool's threads as headers, which hold ids but no identity.
    """
    identity = submitted.get(_KEY)
    here = trace.get_current_span(context).get_span_context()
    there = trace.get_current_span(submitted).get_span_context()
    is_inside = here.is_valid and here.trace_id == there.trace_id
    return identity if is_inside and isinstance(identity, Identity) else NO_IDENTITY


def with_identity(identity: Identity, context: otel_context.Context) -> otel_context.Context:
    """Return a context with the identity of a trajectory."""
    return otel_context.set_value(_KEY, identity, context)
