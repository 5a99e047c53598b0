"""Read OTLP/JSON: a line as JSON, and as spans.

If a known field of a span has another type or range than OTLP gives it, the whole line is unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from otel_rollout.otlp.json_line import spans_of_json
from otel_rollout.otlp.span import UNREADABLE, Span


class UnreadableLineError(ValueError):
    """Raised for a line that is no OTLP/JSON trace data."""


class TraceLine:
    """A line of OTLP JSON Lines, as bytes and as complete spans, both made on first use.

    Args:
        encoded: the line, with its newline; None if ``parsed`` is given.
        parsed: the line's JSON, which must not change any more.
        recorded: the bytes to fall back on if ``parsed`` cannot be encoded.
        spans: the spans of ``parsed``, if they are read already.
    """

    __slots__ = ("_encoded", "_opened", "_parsed", "_recorded", "_spans")

    def __init__(
        self,
        encoded: bytes | None = None,
        parsed: dict[str, Any] | None = None,
        recorded: bytes | None = None,
        spans: list[Span] | None = None,
    ) -> None:
        self._recorded = recorded
        self._encoded = encoded
        self._parsed = parsed
        self._opened = [] if spans is None else [spans]
        self._spans: list[Span] | None = None

    @property
    def encoded(self) -> bytes:
        """The line as bytes."""
        parsed = self._parsed  # read first: another thread drops it once the bytes exist
        if self._encoded is None:
            self._encoded = self._dumped(parsed)
        return self._encoded

    def _dumped(self, parsed: dict[str, Any] | None) -> bytes:
        try:
            return orjson.dumps(parsed, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # nested more deeply than orjson writes, though it reads it
            if self._recorded is None:
                raise
            return self._recorded

    @property
    def spans(self) -> list[Span]:
        """The line's spans, complete. Fields and values of newer versions are ignored.

        Raises:
            UnreadableLineError: when the line is no OTLP/JSON trace data.
        """
        if self._spans is None:
            self._spans = self._completed()
            if self._encoded is not None:
                self._parsed = None
        return self._spans

    def _completed(self) -> list[Span]:
        parsed = self._parsed
        try:
            try:
                opened: Iterable[Span] = self._opened.pop()  # one thread alone completes a span
            except IndexError:
                opened = spans_of_json(parsed_line(self.encoded) if parsed is None else parsed)
            return [span.complete() for span in opened]
        except UnreadableLineError:
            raise
        except UNREADABLE as error:
            raise _unreadable(error) from error


def parsed_line(line: bytes) -> Any:
    """Parse one line of OTLP JSON Lines.

    Raises:
        UnreadableLineError: when the line is no JSON.
    """
    try:
        return orjson.loads(line)
    except ValueError as error:
        raise _unreadable(error) from error


def spans_of(line: bytes) -> list[Span]:
    """Decode one line of OTLP JSON Lines.

    Fields and values of newer versions are ignored.

    Raises:
        UnreadableLineError: when the line is no OTLP/JSON trace data.
    """
    return TraceLine(line).spans


def _unreadable(error: Exception) -> UnreadableLineError:
    return UnreadableLineError(f"not OTLP/JSON trace data: {type(error).__name__}: {error}")
