"""Count the tokens of a trace's model calls once, from its spans in any order.

A model call is an LLM span that is not inside another one. A count that it lacks is the sum over the nearest
LLM spans inside it. The view ``inner_calls`` has the same rule, for spans in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

Id = TypeVar("Id", int, str)
"""A span's id, as its reader has it."""
_MAX_DEPTH: Final = 32
"""Spans inside one another that are followed, as in the view: damaged spans may be parents of one another."""


class CallTokens(Generic[Id]):
    """The counts of a trace's spans, by names of the reader's own."""

    def __init__(self) -> None:
        self._spans: dict[Id, tuple[Id | None, Mapping[str, int] | None]] = {}

    def add(self, span_id: Id, parent_id: Id | None, counts: Mapping[str, int] | None) -> None:
        """Add a span, or replace it; ``counts`` is None unless it is an LLM span."""
        self._spans[span_id] = parent_id, counts

    def total(self, *names: str) -> tuple[int | None, ...]:
        """Return the sum of each count over the trace's model calls; None where no span has the count."""
        inside: dict[Id | None, list[Id]] = {}
        for span_id, (parent_id, counts) in self._spans.items():
            if counts is not None:
                inside.setdefault(self._call_around(parent_id), []).append(span_id)
        return tuple(self._sum(inside.get(None, ()), inside, name) for name in names)

    def _sum(
        self, calls: Iterable[Id], inside: Mapping[Id | None, Sequence[Id]], name: str, depth: int = 0
    ) -> int | None:
        known = [count for call in calls if (count := self._count(call, inside, name, depth)) is not None]
        return sum(known) if known else None

    def _count(self, call: Id, inside: Mapping[Id | None, Sequence[Id]], name: str, depth: int) -> int | None:
        own = (self._spans[call][1] or {}).get(name)
        if own is not None or depth == _MAX_DEPTH:
            return own
        return self._sum(inside.get(call, ()), inside, name, depth + 1)

    def _call_around(self, span_id: Id | None) -> Id | None:
        """Return the nearest LLM span among a span and those around it; None without one."""
        for _ in range(_MAX_DEPTH):
            if span_id is None or span_id not in self._spans:
                return None
            parent_id, counts = self._spans[span_id]
            if counts is not None:
                return span_id
            span_id = parent_id
        return None
