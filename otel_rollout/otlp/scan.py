"""Find ids, times, scope and step in a recorded line, without parsing the line.

A search for the bytes of an attribute never matches inside a JSON string, because there the quotation marks
are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp import writer
from otel_rollout.otlp.json_line import UnreadableLineError, spans_of

LINE_HEAD: Final = b'{"resourceSpans"'
"""The first bytes of each recorded line."""
_TRACE_ID: Final = re.compile(rb'"traceId":"([0-9a-f]{32})"')
_IDS: Final = re.compile(rb'"traceId":"([0-9a-f]{32})","spanId":"([0-9a-f]{16})"')
_END_TIME: Final = re.compile(rb'"endTimeUnixNano":"(\d{1,19})"')
_SCOPE: Final = re.compile(rb'"scope":\{"name":("[^"\\]*(?:\\.[^"\\]*)*")')
OWN_SCOPE: Final = b'"scope":{"name":%b' % writer.json_string(semconv.SCOPE)
"""Bytes that are in each line of our own instrumentation scope."""
SPANS: Final = b'"spans":['
"""Bytes before the spans of each scope: once in a recorded line."""
_ANY_TRACE_ID: Final = re.compile(rb'"traceId": ?"([0-9a-f]{32})"')
_STEP: Final = writer.head_of(semconv.STEP) + b'{"'
_INTEGER: Final = b'intValue":"'
_MAX_INTEGER_DIGITS: Final = 20
_VALIDATE: Final = writer.head_of(semconv.VALIDATE) + b'{"boolValue":'


class StepKey(NamedTuple):
    """A step of training or of validation.

    ``step`` is empty for spans outside any trajectory. ``step`` is "other steps" if the files do not name the
    step: for drops of a process that already had drops in 95 other steps, and for running operations of a
    process whose running trajectories have several steps.
    """

    step: str
    validate: bool


def step_of(line: bytes) -> StepKey:
    """Return the step of a recorded line."""
    at = line.find(_VALIDATE)
    validate = at >= 0 and line.startswith(b"true", at + len(_VALIDATE))
    start = line.find(_STEP)
    if start < 0:
        return StepKey("", validate)
    start += len(_STEP)
    end = -1
    if line.startswith(_INTEGER, start):
        start += len(_INTEGER)
        end = line.find(b'"', start, start + _MAX_INTEGER_DIGITS + 1)
    if end < 0:  # text, which may hold escapes; or a damaged line
        return parsed_step_of(line)
    return StepKey(line[start:end].decode("ascii", "replace"), validate)


def parsed_step_of(line: bytes) -> StepKey:
    """Return the step of a line by parsing it; empty if the line is unreadable."""
    try:
        spans = spans_of(line)
    except UnreadableLineError:
        return StepKey("", False)
    attributes = spans[0].attributes if spans else {}
    return StepKey(str(attributes.get(semconv.STEP, "")), attributes.get(semconv.VALIDATE) is True)


def scope_of(line: bytes) -> str:
    """Return the name of a line's instrumentation scope; empty if it is not a recorder's line."""
    found = _SCOPE.search(line)
    try:
        return str(orjson.loads(found[1])) if found else ""
    except orjson.JSONDecodeError:  # a damaged line
        return ""


def trace_id_of(line: bytes) -> bytes | None:
    """Return the 16 bytes of a line's trace id; None if it is not a recorder's line."""
    found = _TRACE_ID.search(line)
    return bytes.fromhex(found[1].decode()) if found else None


def ids_of(line: bytes) -> tuple[bytes, bytes]:
    """Return a line's trace id and span id in hex. Both are empty if no recorder wrote the line."""
    found = _IDS.search(line)
    return (found[1], found[2]) if found else (b"", b"")


def has_one_span(line: bytes) -> bool:
    """Return whether a line holds exactly one span and no link, written as by a recorder."""
    return line.count(b'"spanId":"') == 1 and _IDS.search(line) is not None


def end_time_of(line: bytes) -> int | None:
    """Return the end of a line's span, Unix time in ns; None if the line has no end."""
    found = _END_TIME.search(line)
    return int(found[1]) if found else None


def trace_ids_in(line: bytes) -> list[bytes]:
    """Return the trace ids of a line's spans and links, in hex. Any program may have written the line."""
    return _ANY_TRACE_ID.findall(line)


def may_have_root(line: bytes) -> bool:
    """Return whether a line may hold a root span. Other lines need not be decoded."""
    return b'"parentSpanId":""' in line or b'"parentSpanId"' not in line


def pattern_of_attributes(prefixes: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern of lines with an attribute whose name begins with one of ``prefixes``."""
    return re.compile(rb'"key":"(?:%b)' % b"|".join(re.escape(prefix).encode() for prefix in prefixes))
