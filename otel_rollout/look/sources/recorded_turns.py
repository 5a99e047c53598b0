"""Complete recorded model calls as the forwarder does for a table: which turn each continues or breaks.

Text of token ids is left out: a query of many trajectories needs none of it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.otlp.json_line import spans_of_json
from otel_rollout.otlp.reader import TraceLine, UnreadableLineError, parsed_line
from otel_rollout.otlp.span import Span
from otel_rollout.turns import foreign_spans
from otel_rollout.turns.line_rewriter import MEMORY_BYTES
from otel_rollout.turns.span_rewriter import Contents, SpanRewriter, TraceMemory

_PROMPT: Final = b'prompt_ids\\":['
_CONTENTS: Final = Contents(tokens=True, images=False)


class RecordedTurns:
    """The turns of the trajectories whose lines are read, in the order of their ends."""

    def __init__(self) -> None:
        self._traces: BoundedDict[str, TraceMemory] = BoundedDict(MEMORY_BYTES, attrgetter("size"))

    def spans_of(self, line: bytes) -> list[Span]:
        """Return the spans of a recorded line; nothing if it is still being written, or damaged."""
        try:
            filled = foreign_spans.filled(line)
            return self._completed(filled).spans if _PROMPT in line else filled.spans
        except UnreadableLineError:
            return []

    def _completed(self, line: TraceLine) -> TraceLine:
        parsed = parsed_line(line.encoded)
        spans = list(spans_of_json(parsed))
        for span in spans:
            trace = self._traces.pop(span.trace_id, None) or TraceMemory()
            try:
                SpanRewriter(span, trace, "tokens", _CONTENTS).rewrite()
            except Exception:  # noqa: BLE001 - a value of any shape: the span stays as recorded
                return line
            finally:
                trace.measure()
                self._traces[span.trace_id] = trace
        return TraceLine(parsed=parsed, recorded=line.encoded, spans=spans)
