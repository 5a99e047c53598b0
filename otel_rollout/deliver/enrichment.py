"""What exporters get for what was recorded: the text of token ids, and of what is resent the new part.

A line without anything of the kind goes through as it is. Of others the JSON in a span's input and output
changes; what does is in docs/tokens.md. What was recorded stays in the segments, and whatever goes wrong here
costs the change and nothing else.

All exporters of a forwarder share what is remembered of a trace. They read the same lines at their own pace,
and a line comes out the same for each, and again if it has to be sent again: it is told by turns that had
ended when its own began. What is remembered is bounded, and gone when the forwarder starts anew: then a turn
is told in full.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from otel_rollout import semconv
from otel_rollout.deliver.decoders import Decoders
from otel_rollout.deliver.telling import Call, Holds, Trace

MEMORY_BYTES: Final = 256 << 20
"""What is remembered of all traces together; of those not seen for longest it is forgotten."""
_TOKENIZER = b'{"key":"%b","value":' % semconv.TOKENIZER.encode()
_TEXT_OF = b'{"key":"%b","value":' % semconv.TEXT_OF.encode()
_IDS = b'_ids\\"'
_IMAGE = b";base64,"
_SCOPES = b'"scopeSpans":[{'
_logger = logging.getLogger("otel_rollout.deliver")


class Enrichment:
    """Lines as exporters get them.

    Args:
        node_dir: has the tokenizers.
        told: which turns are told by what is new in them: those of ``tokens``, ``all``, or none (``whole``).
        redact: what text goes through that was decoded here, and so never was in a line before.
    """

    def __init__(
        self, node_dir: Path, told: str = "tokens", redact: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._told = told
        self._redact = redact
        self._decoders = Decoders(node_dir)
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def line(self, line: bytes) -> bytes:
        """What an exporter gets of a recorded line. Never raises."""
        has_text = _TOKENIZER in line or _TEXT_OF in line
        if not has_text and (self._told == "whole" or not _may_repeat(line)):
            return line
        try:
            data = orjson.loads(line)
            holds = Holds(tokens=_IDS in line, images=_IMAGE in line)
            with self._lock:
                changed = [self._enrich(span, holds) for span in _spans(data)]
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

    def _enrich(self, span: dict[str, Any], holds: Holds) -> bool:
        trace_id = str(span["traceId"])
        trace = self._traces.pop(trace_id, None) or Trace()
        self._size -= trace.size
        try:
            return Call(span, trace, self._told, holds, self._decoders).told()
        finally:
            trace.measure()
            self._size += trace.size
            self._traces[trace_id] = trace
            while self._size > MEMORY_BYTES and len(self._traces) > 1:
                self._size -= self._traces.popitem(last=False)[1].size


def _may_repeat(line: bytes) -> bool:
    """Whether there is something in a line that other spans of its trace may have as well."""
    return b'prompt_ids\\":[' in line or b'messages\\":[' in line or _IMAGE in line


def _spans(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for of_resource in data["resourceSpans"]:
        for of_scope in of_resource["scopeSpans"]:
            yield from of_scope["spans"]
