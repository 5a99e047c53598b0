"""Leave out the spans of lines that a table has already, or that came before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import orjson

from otel_rollout.exporting.batching import batches
from otel_rollout.otlp import scan
from otel_rollout.otlp.json_line import parsed_line, spans_of_json, without_spans
from otel_rollout.otlp.span import UNREADABLE, Span
from otel_rollout.table import views
from otel_rollout.table.filters import equals
from otel_rollout.table.query import Engine

_LINES_AT_ONCE: Final = 2_000
"""Maximum lines whose spans are looked up with one query."""
_BYTES_AT_ONCE: Final = 32 << 20
"""Maximum bytes of the lines that are looked up with one query. A longer line is looked up alone."""

Ids = tuple[str, str]
"""Trace id and span id."""


class NewSpans:
    """A filter that removes the spans that a table has from lines, and counts known and new spans.

    Args:
        engine: returns the engine that queries the table; called once, when the first span is looked up.

    Attributes:
        new: number of spans that the table does not have.
        known: number of spans that the table has, or that came before.
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = functools.cache(engine)
        self.new = 0
        self.known = 0
        self._yielded: set[int] = set()

    def of(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the lines with their new spans alone; a line that is no OTLP/JSON stays."""
        for part in batches(lines, len, _BYTES_AT_ONCE, _LINES_AT_ONCE):
            ids = [_ids_in(line) for line in part]
            known = self._known({trace_id for found in ids for trace_id, _ in found})
            for line, found in zip(part, ids, strict=True):
                new = {each for each in found if each not in known and hash(each) not in self._yielded}
                self._yielded.update(map(hash, new))
                self.known += len(found) - len(new)
                self.new += len(new)
                if new or not found:
                    yield line if len(new) == len(found) else _with_only(line, new)

    def _known(self, traces: set[str]) -> set[Ids]:
        """Return the ids of the spans that the table has of some traces."""
        if not traces:
            return set()
        condition = equals("trace_id", sorted(traces))
        sql = f"SELECT trace_id, span_id FROM {views.RECORDED} WHERE {condition}"  # noqa: S608
        return {(row["trace_id"], row["span_id"]) for row in self._engine().dicts(sql)}


def _ids_in(line: bytes) -> list[Ids]:
    """Return the ids of a line's spans; none if it is no OTLP/JSON."""
    if scan.has_one_span(line):
        trace_id, span_id = scan.ids_of(line)
        return [(trace_id.decode(), span_id.decode())]
    try:
        return [_ids_of(span) for span in spans_of_json(parsed_line(line))]
    except UNREADABLE:
        return []


def _ids_of(span: Span) -> Ids:
    return span.trace_id, span.span_id


def _with_only(line: bytes, new: set[Ids]) -> bytes:
    data = parsed_line(line)
    without_spans(data, lambda span: _ids_of(span) not in new)
    try:
        return orjson.dumps(data) + b"\n"
    except TypeError:  # nested more deeply than orjson writes; views count a span once
        return line
