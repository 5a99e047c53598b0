"""Rewrite lines for exporters: decode token ids, shorten repeated content, complete foreign spans.

A line without token ids, messages and images stays as recorded, unless another library recorded its span. In
other lines the JSON of a span's input and output may change; docs/training.md says how. Spans of another
library get our attributes (:mod:`otel_rollout.turns.foreign_spans`). Segments keep the recorded lines. A line
that cannot be rewritten is exported as recorded.

All exporters of a forwarder share one rewriter. A line refers only to turns and images of spans that had
ended when its own span began, whatever the order in which lines are read. So exporters may read lines at any
pace, and repeatedly.

The memory of traces is bounded, and empty when a forwarder starts. The memory may forget a trace, for example
while an exporter catches up. The next turn of that trace is then exported in full, and the answer that its
root shows is read from the segment.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import Final

from otel_rollout.base import semconv
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.otlp.json_line import TraceLine, parsed_line, spans_of_json
from otel_rollout.otlp.scan import ids_of
from otel_rollout.otlp.span import Span
from otel_rollout.otlp.writer import SCOPES, head_of
from otel_rollout.spool import segments
from otel_rollout.spool.layout import SEGMENT_SUFFIX, SegmentName
from otel_rollout.turns import foreign_spans
from otel_rollout.turns.detokenizer import Detokenizer, DetokenizerCache
from otel_rollout.turns.span_rewriter import Contents, SpanRewriter, TraceMemory

MEMORY_BYTES: Final = 256 << 20
"""Maximum bytes of memory for all traces; the traces not seen for longest are forgotten first."""
_TRACE_SHARE: Final = 4
"""Divisor of the memory: a trace that takes more than a quarter of the memory is forgotten."""
_MAX_LOGGED_PROBLEMS: Final = 100
_TEXT_ATTRIBUTES = frozenset({semconv.TOKENIZER, semconv.TEXT_OF})
_TEXT_HEADS = tuple(map(head_of, _TEXT_ATTRIBUTES))
_BEGINNING_OF_BOTH = b'"rollout.t'
"""Beginning of both heads: one search for it rules out most lines."""
_IDS = b'_ids\\"'
_EVERYTHING = Contents(tokens=True, images=False)
_IMAGE = b";base64,"


class LineRewriter:
    """Rewrites recorded lines; several threads may use it.

    Args:
        node_dir: holds the tokenizers and the segments.
        turns: which turns are exported without their shared prefix: turns of token ids (``tokens``), ``all``,
            or none (``whole``).
        redact: redacts a line with decoded text, which the recorder could not redact.
        memory: maximum bytes of memory for all traces; by default ``MEMORY_BYTES``.
    """

    def __init__(
        self,
        node_dir: Path,
        turns: str = "tokens",
        redact: Callable[[bytes], bytes] | None = None,
        memory: int | None = None,
    ) -> None:
        self._node_dir = node_dir
        self._turns = turns
        self._redact = redact
        self._detokenizers = DetokenizerCache(node_dir)
        memory = MEMORY_BYTES if memory is None else memory
        self._max_trace = memory // _TRACE_SHARE
        self._traces: BoundedDict[str, TraceMemory] = BoundedDict(memory, attrgetter("size"))
        self._lock = threading.Lock()
        self._problems: set[str] = set()

    def rewrite(self, line: bytes) -> TraceLine:
        """Return the line that exporters get for a recorded line. Never raises."""
        is_foreign = foreign_spans.may_be_filled(line)
        # The search for one byte is faster by far.
        contents = Contents(tokens=_IDS in line, images=b";" in line and _IMAGE in line)
        may_repeat = self._turns != "whole" and may_repeat_content(line, contents)
        if not (may_repeat or is_foreign or may_have_text(line)):
            return TraceLine(line)
        try:
            parsed = parsed_line(line)
            spans = [span.opened() for span in spans_of_json(parsed)]
            changed = [is_foreign and self._fill(spans)]
            has_text = not all(span.attributes.keys().isdisjoint(_TEXT_ATTRIBUTES) for span in spans)
            # Detokenizers and answers may wait for files, so they are fetched before the lock is taken.
            sources = [
                (span, self._detokenizer_of(span), self._answer_shown_by(span))
                if has_text
                else (span, None, None)
                for span in spans
            ]
            with self._lock:
                changed += [self._rewrite_span(contents, *source) for source in sources]
            if not any(changed):
                return TraceLine(line, parsed, spans=spans)
            rewritten = TraceLine(parsed=parsed, recorded=line, spans=spans)
            return self._redacted(rewritten) if has_text else rewritten
        # No failure may stop the export of a line; a panic of the library tokenizers is no Exception.
        except BaseException as error:  # noqa: BLE001
            self._warn(error)
            return TraceLine(line)

    def _fill(self, spans: Iterable[Span]) -> bool:
        try:
            return foreign_spans.fill(spans)
        except Exception as error:  # noqa: BLE001 - another library's content may have any shape
            self._warn(error)
            return False

    def _warn(self, error: BaseException) -> None:
        if str(error) not in self._problems and len(self._problems) < _MAX_LOGGED_PROBLEMS:
            self._problems.add(str(error))
            logger.warning("a span cannot be rewritten and is exported as recorded: %r", error)

    def _redacted(self, line: TraceLine) -> TraceLine:
        if self._redact is None:
            return line
        begin = line.encoded.index(SCOPES) + len(SCOPES)  # the recorder does not redact the resource either
        return TraceLine(line.encoded[:begin] + self._redact(line.encoded[begin:]))

    def _detokenizer_of(self, span: Span) -> Detokenizer | None:
        """Return the detokenizer that a span names; wait for a tokenizer's file that is being written."""
        name = span.text(semconv.TOKENIZER)
        return self._detokenizers.get(name, span.end_ns / 1e9) if name else None

    def _answer_shown_by(self, span: Span) -> str | None:
        """Return the answer text of the other span that ``span`` names, from the memory or the segment."""
        other = span.text(semconv.TEXT_OF)
        if other is None:
            return None
        with self._lock:
            trace = self._traces.get(span.trace_id)
            known = trace.texts.get(other) if trace is not None else None
        return known if known is not None else self._recorded_text(span, other)

    def _rewrite_span(
        self, contents: Contents, span: Span, detokenizer: Detokenizer | None, answer: str | None
    ) -> bool:
        trace = self._traces.get(span.trace_id) or TraceMemory()
        try:
            return SpanRewriter(span, trace, self._turns, contents, detokenizer, answer).rewrite()
        finally:
            trace.measure()
            if trace.size <= self._max_trace:
                self._traces[span.trace_id] = trace
            else:
                self._traces.pop(span.trace_id, None)

    def _recorded_text(self, root: Span, span_id: str) -> str | None:
        """Read a span's answer text from the segment of the root that shows it, or from the segment before.

        The process that recorded the root wrote the span's line shortly before. Return None if that line is
        not found.
        """
        stem = root.resource.attributes.get(semconv.SEGMENT_ID)
        name = SegmentName.parse(stem + SEGMENT_SUFFIX) if isinstance(stem, str) else None
        if name is None:
            return None
        for sequence in (name.sequence, name.sequence - 1):
            path = self._node_dir / SegmentName(name.writer, sequence).file
            for line, _ in segments.complete_lines(path, 0, sys.maxsize):
                if ids_of(line)[1] == span_id.encode():
                    (span,) = spans_of_json(parsed_line(line))
                    trace = TraceMemory()
                    detokenizer = self._detokenizer_of(span)
                    SpanRewriter(span, trace, "whole", _EVERYTHING, detokenizer).rewrite()
                    return trace.texts.get(span_id)
        return None


def may_have_text(line: bytes) -> bool:
    """Return whether a line has an attribute for which text is decoded or shown."""
    return _BEGINNING_OF_BOTH in line and any(head in line for head in _TEXT_HEADS)


def may_repeat_content(line: bytes, contents: Contents) -> bool:
    """Return whether a line may hold content that other spans hold too."""
    return contents.images or b'messages\\":[' in line or (contents.tokens and b'prompt_ids\\":[' in line)
