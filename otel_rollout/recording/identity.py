"""Which trajectory a span belongs to: identity attributes, carried in the OTel context.

Spans recorded by our own provider inherit it from their parent; spans whose parent is somebody else's (the
application's SDK, another process) find it in the context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import context as otel_context

from otel_rollout.base import semconv
from otel_rollout.base.interrupts import pass_on
from otel_rollout.otlp import writer

_HEADS: Final = {key: writer.head_of(key) for key in semconv.IDENTITY}
PLAIN: Final = frozenset({int, str, bool, type(None)})
"""Types that identity is recorded in, as they are."""
_MAX_INT: Final = 1 << 63
"""Bound of the integers that OTLP has."""
_KEY: Final = otel_context.create_key("otel-rollout-identity")


class Identity:
    """Identity attributes of one trajectory, and how they look on a line. Does not change.

    Args:
        attributes: attribute names and values; None values are left out.
        token2text: what the trajectory says, in this process, of showing the text of token ids.

    Attributes:
        encoded: the attributes as on a line, once they are needed.
    """

    __slots__ = ("attributes", "encoded", "token2text")

    def __init__(
        self, attributes: Mapping[str, writer.AttributeInput], token2text: bool | None = None
    ) -> None:
        self.token2text = token2text
        self.attributes = {key: value for key, value in attributes.items() if value is not None}
        self.encoded: bytes | None = None

    def encode(self) -> bytes:
        """Make ``encoded``; not needed where a trajectory is left out."""
        # No cached property: before Python 3.12 that takes a lock, which a fork may leave locked for ever.
        encoded = self.encoded = b",".join([_attribute(*item) for item in self.attributes.items()])
        return encoded

    def shortened(self, longest: int) -> bytes:
        """The attributes as on a line, with texts cut to ``longest`` characters."""
        cut = {
            key: value[:longest] if isinstance(value, str) else value
            for key, value in self.attributes.items()
        }
        return b",".join([_attribute(*item) for item in cut.items()])

    @property
    def step(self) -> tuple[str, bool]:
        """The trajectory's step as the account has it, and whether it is one of validation."""
        known = self.attributes
        return str(known.get(semconv.STEP, "")), bool(known.get(semconv.VALIDATE, False))


def scalar(value: Any) -> Any:
    """Return a number or text as a builtin type, a whole number as an int; return anything else as it is.

    So ``1``, ``1.0`` and NumPy's are the same step in every process and backend. A bool is no number.
    """
    value = builtin(value)
    if type(value) is float and abs(value) < _MAX_INT and value.is_integer():
        return int(value)
    return value


def builtin(value: Any) -> Any:
    """Return a number or text as a builtin type, with the type it has; return anything else as it is."""
    if type(value) in PLAIN:
        return value
    if not isinstance(value, (int, float, str)):
        try:
            value = value.item()  # numpy and torch scalars
        except Exception as error:  # noqa: BLE001 - neither, or not a scalar
            pass_on(error)
            return value
    for base in (bool, int, float):  # enums and the like
        if isinstance(value, base):
            return base(value)
    return str.__str__(value) if isinstance(value, str) else value


def _attribute(key: str, value: writer.AttributeInput) -> bytes:
    head = _HEADS.get(key)
    return writer.attribute(key, value) if head is None else head + writer.any_value(value) + b"}"


NO_IDENTITY: Final = Identity({})


def identity_in(context: otel_context.Context | None) -> Identity:
    """The identity of the trajectory that ``context`` (None: the current one) is inside of."""
    identity = otel_context.get_value(_KEY, context)
    return identity if isinstance(identity, Identity) else NO_IDENTITY


def with_identity(identity: Identity, context: otel_context.Context) -> otel_context.Context:
    """A context inside the trajectory."""
    return otel_context.set_value(_KEY, identity, context)
