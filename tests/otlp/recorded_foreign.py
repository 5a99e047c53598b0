"""Read the lines that :mod:`tests.otlp.foreign_spans` recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_rollout.base import semconv
from otel_rollout.otlp import json_line
from otel_rollout.otlp.span import Span
from otel_rollout.turns.line_rewriter import LineRewriter

DIRECTORY = Path(__file__).with_name("foreign")
LIBRARIES = sorted(path.stem for path in DIRECTORY.glob("*.jsonl"))


@dataclass(frozen=True)
class ForeignSpan:
    """A span of a line, with plain values."""

    name: str
    attributes: Mapping[str, Any]
    events: list[tuple[str, Mapping[str, Any]]]
    has_failed: bool


def path_of(library: str) -> Path:
    """Return the file of a library's lines."""
    return DIRECTORY / f"{library}.jsonl"


def lines_of(library: str) -> list[bytes]:
    """Return the lines of a library, the trajectory's root last."""
    return path_of(library).read_bytes().splitlines(keepends=True)


def spans_in(line: bytes) -> Iterator[ForeignSpan]:
    """Yield the spans of a line."""
    for span in json_line.spans_of(line):
        events = [(event.name, event.attributes) for event in span.events]
        yield ForeignSpan(span.name, span.attributes, events, span.has_failed)


def spans_of(library: str) -> list[ForeignSpan]:
    """Return the spans of a library, without the trajectory's root."""
    spans = [span for line in lines_of(library) for span in spans_in(line)]
    return [span for span in spans if span.name != "rollout_trace"]


def exported(library: str, project: str = "agents") -> list[Span]:
    """Return a library's spans as exporters get them, the trajectory's root last.

    Each project has a trace of its own.
    """
    rewriter = LineRewriter(Path())
    trace_id = hashlib.sha256(f"{library} {project}".encode()).hexdigest()[:32].encode()
    text = path_of(library).read_bytes().replace(b'"agents"', b'"%b"' % project.encode())
    lines = text.replace(b"0" * 31 + b"2", trace_id).splitlines(keepends=True)
    return [span for line in lines for span in rewriter.rewrite(line).spans]


def calls_in(spans: Sequence[Span]) -> list[Span]:
    """Return spans of successful model calls, without those of Anthropic's SDK."""
    return [
        span
        for span in spans
        if span.text(semconv.SPAN_KIND) == semconv.KIND_LLM
        and not span.has_failed
        and not span.name.startswith("anthropic.")
    ]
