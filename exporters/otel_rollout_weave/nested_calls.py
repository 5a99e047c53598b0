"""Tell which model calls are inside others, as far as their spans have come.

The span of a client and that of a proxy below it are one call. Weave adds up the token counts of all calls,
and cannot change a written call. So one span has each count: the outer one, unless an inner one was written
before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.otlp import model_calls
from otel_rollout.otlp.span import Span
from otel_rollout_weave.server import MAX_REMEMBERED

_Key = tuple[str, str]
_MAX_LEVELS: Final = 64
"""Maximum spans around a span that are looked at: parents may form a circle."""
_NO_COUNTS: Final[frozenset[str]] = frozenset()


class Place(NamedTuple):
    """Where a span is among the model calls of its trace.

    Attributes:
        is_inside: whether a model call is around it.
        counted: names of the token counts that calls around or inside it have.
    """

    is_inside: bool = False
    counted: frozenset[str] = _NO_COUNTS


class NestedCalls:
    """The last spans that were written, by trace and span id. Not thread-safe."""

    def __init__(self) -> None:
        self._parents: BoundedDict[_Key, str] = BoundedDict(MAX_REMEMBERED)
        self._counts: BoundedDict[_Key, frozenset[str]] = BoundedDict(MAX_REMEMBERED)
        self._inside: BoundedDict[_Key, frozenset[str]] = BoundedDict(MAX_REMEMBERED)

    def add(self, spans: Iterable[Span]) -> None:
        """Remember spans that are about to be written."""
        for span in spans:
            key = span.trace_id, span.span_id
            self._parents[key] = span.parent_id
            counts = model_calls.usage_of(span.attributes)
            if counts is not None:
                self._counts[key] = frozenset(counts)
            if inside := self._inside.get(key):
                self._add_inside(key, inside)

    def place_of(self, span: Span) -> Place:
        """Return the place of a remembered span; counts that no other call has are its own from now on."""
        key = span.trace_id, span.span_id
        around = [
            self._counts[outer] - self._inside.get(outer, _NO_COUNTS)
            for outer in self._around(key)
            if outer in self._counts
        ]
        counted = self._inside.get(key, _NO_COUNTS).union(*around)
        if own := self._counts.get(key, _NO_COUNTS) - counted:
            self._add_inside(key, own)
        return Place(bool(around), counted)

    def _add_inside(self, key: _Key, counts: frozenset[str]) -> None:
        for outer in self._around(key):
            self._inside[outer] = counts.union(self._inside.get(outer, _NO_COUNTS))

    def _around(self, key: _Key) -> Iterator[_Key]:
        """Yield the spans around a span, the nearest first; the last one may be unknown."""
        for _ in range(_MAX_LEVELS):
            parent = self._parents.get(key)
            if not parent:
                return
            key = key[0], parent
            yield key
