"""What exporters get for what was recorded: the text of token ids, and of what is resent the new part.

A line without anything of the kind goes through as it is. Of others the JSON in a span's input and output
changes; what does is in docs/tokens.md. What was recorded stays in the segments, and whatever goes wrong here
costs the change and nothing else.

Each exporter of a forwarder remembers traces by itself: exporters read lines at different paces, and what
one gets must not depend on another. A line comes out the same if it has to be sent again: it is told by turns
that had ended when its own began. What is remembered is bounded, and gone when the forwarder starts anew.
Then a turn is told in full, and the answer that a root shows is read again from the segment.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from otel_rollout.base import semconv
from otel_rollout.forwarder.span_rewriter import Call, Holds, Trace
from otel_rollout.forwarder.tokenizer_cache import Decoders
from otel_rollout.spool import segments
from otel_rollout.spool.layout import SEGMENT_SUFFIX, SegmentName

MEMORY_BYTES: Final = 256 << 20
"""What a forwarder's exporters remember of all traces together; those not seen for longest are forgotten."""
_TRACE_SHARE: Final = 4
"""One trace may take this part of an exporter's memory; one that needs more is begun anew."""
_TOKENIZER = b'{"key":"%b","value":' % semconv.TOKENIZER.encode()
_TEXT_OF = b'{"key":"%b","value":' % semconv.TEXT_OF.encode()
_IDS = b'_ids\\"'
_EVERYTHING = Holds(tokens=True, images=False)
_IMAGE = b";base64,"
_SCOPES = b'"scopeSpans":[{'
_logger = logging.getLogger("otel_rollout.forwarder")


class Enrichment:
    """Lines as exporters get them.

    Args:
        node_dir: has the tokenizers.
        told: which turns are told by what is new in them: those of ``tokens``, ``all``, or none (``whole``).
        redact: what text goes through that was decoded here, and so never was in a line before.
        decoders: those of the run, which exporters share; by default some of its own.
        memory: bytes that may be remembered of all traces; by default all that a forwarder has.
    """

    def __init__(
        self,
        node_dir: Path,
        told: str = "tokens",
        redact: Callable[[bytes], bytes] | None = None,
        decoders: Decoders | None = None,
        memory: int | None = None,
    ) -> None:
        self._node_dir = node_dir
        self._told = told
        self._redact = redact
        self._decoders = decoders if decoders is not None else Decoders(node_dir)
        self._memory = MEMORY_BYTES if memory is None else memory
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._size = 0
        self._said: set[str] = set()

    def line(self, line: bytes) -> bytes:
        """What an exporter gets of a recorded line. Never raises."""
        has_text = _TOKENIZER in line or _TEXT_OF in line
        if not has_text and (self._told == "whole" or not _may_repeat(line)):
            return line
        try:
            data = orjson.loads(line)
            holds = Holds(tokens=_IDS in line, images=_IMAGE in line)
            changed = [self._enrich(span, holds, data) for span in _spans(data)]
            return self._redacted(orjson.dumps(data) + b"\n", has_text) if any(changed) else line
        # Nothing may keep a line from being delivered; a panic of the tokenizers' library is no Exception.
        except BaseException as error:  # noqa: BLE001
            if str(error) not in self._said and len(self._said) < 100:
                self._said.add(str(error))
                _logger.warning("spans are delivered as they were recorded: %r", error)
            return line

    @property
    def decoded(self) -> int:
        """Tokens decoded so far."""
        return self._decoders.decoded

    def _redacted(self, line: bytes, has_text: bool) -> bytes:
        if self._redact is None or not has_text:
            return line
        begin = line.index(_SCOPES) + len(_SCOPES)  # as when it was recorded, without its resource
        return line[:begin] + self._redact(line[begin:])

    def _enrich(self, span: dict[str, Any], holds: Holds, data: dict[str, Any]) -> bool:
        trace_id = str(span["traceId"])
        trace = self._traces.pop(trace_id, None) or Trace()
        self._size -= trace.size
        try:
            recorded_text = functools.partial(self._recorded_text, data)
            return Call(span, trace, self._told, holds, self._decoders, recorded_text).told()
        finally:
            trace.measure()
            if trace.size <= self._memory // _TRACE_SHARE:
                self._size += trace.size
                self._traces[trace_id] = trace
            while self._size > self._memory:
                self._size -= self._traces.popitem(last=False)[1].size

    def _recorded_text(self, root: dict[str, Any], span_id: str) -> str | None:
        """The text of the answer that a root shows, from the line of its span; None where that is gone.

        The process that recorded the root has written that line before, not long ago.
        """
        name = _segment_of(root)
        if name is None:
            return None
        mark = b'"spanId":"%b"' % span_id.encode()
        for sequence in (name.sequence, name.sequence - 1):
            path = self._node_dir / SegmentName(name.writer, sequence).file
            for line, _ in segments.complete_lines(path, 0, sys.maxsize):
                for span in _spans(orjson.loads(line)) if mark in line else ():
                    if span["spanId"] == span_id:
                        trace = Trace()
                        Call(span, trace, "whole", _EVERYTHING, self._decoders, lambda other: None).told()
                        return trace.texts.get(span_id)
        return None


def _may_repeat(line: bytes) -> bool:
    """Whether there is something in a line that other spans of its trace may have as well."""
    return b'prompt_ids\\":[' in line or b'messages\\":[' in line or _IMAGE in line


def _spans(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for of_resource in data["resourceSpans"]:
        for of_scope in of_resource["scopeSpans"]:
            yield from of_scope["spans"]


def _segment_of(data: dict[str, Any]) -> SegmentName | None:
    """The segment in which a line was recorded."""
    attributes = data["resourceSpans"][0].get("resource", {}).get("attributes", ())
    stems = [
        entry["value"].get("stringValue", "") for entry in attributes if entry["key"] == semconv.SEGMENT_ID
    ]
    return SegmentName.parse(stems[0] + SEGMENT_SUFFIX) if stems else None
