"""Give a span another id if a different span of its trace has the id already.

OpenTelemetry's SDK for Python draws ids from Python's global random numbers. A program that seeds them, as
vLLM does in each of its workers, makes the ids of every other process with that seed again. In one trace, the
later span would overwrite the earlier one in most backends.

Spans with equal trace id and span id are different if they started at different times: a span that is sent
again starts when it did. They are different, too, if they come from processes with different numbers, as far
as senders say the number. This shows before the ids of two spans meet: a span says which parent its process
has, and spans come before their parents.

From then on all ids of that process in that trace are changed, also those of parents in the process, by a
function of the id and the process. So a span that is sent again gets the same id again, and children find
their parents.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Final

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.errors import warn_once
from otel_rollout.otlp.received import ReceivedScope, ReceivedSpan
from otel_rollout.spool.receiver_files import ReceiverCounts

_SLOTS: Final = 1 << 20
"""Spans that are remembered, in 8 MiB; a newer span may take the place of an older one."""
_MAX_OWNED: Final = 1 << 14
"""Ids that are remembered with the process that has them."""
_MAX_CHANGED: Final = 1 << 12
"""Pairs of trace and process whose ids are changed."""
_LOW: Final = 0xFFFF_FFFF
REPEATED: Final = (
    "spans came with ids of other spans of their trace, and got new ones: a program draws ids from random "
    "numbers that it seeds, as vLLM does in its workers. Nothing is lost; to keep that program's ids, give "
    "its tracer provider an id_generator that draws from random.SystemRandom()"
)
"""Warning about the first such span."""


class SpanIds:
    """Knows the ids of the spans of late, in bounded memory.

    Args:
        counts: gets the number of changed ids.
    """

    def __init__(self, counts: ReceiverCounts) -> None:
        self._counts = counts
        self._slots = array("Q", bytes(8 * _SLOTS))
        self._owners: BoundedDict[int, str] = BoundedDict(_MAX_OWNED)
        self._changed: BoundedDict[int, None] = BoundedDict(_MAX_CHANGED)

    def make_unique(self, scope: ReceivedScope, span: ReceivedSpan) -> None:
        """Change the span's id, and its parent's, if its process makes ids that other spans have.

        Args:
            scope: the span's scope; its resource stands for the process.
            span: the span, which is changed.
        """
        resource, trace_id, start_ns = scope.resource, span.trace_id, span.start_ns
        parent_id = span.parent_id if span.has_local_parent else ""
        sender = hash((trace_id, resource.head))
        if sender not in self._changed:
            if not self._has_ids_of_another(span, parent_id, resource.process):
                return
            self._changed[sender] = None
        span_id = _derived(span.span_id, resource.head)
        if self._is_taken(trace_id, span_id, start_ns):  # the process repeats its own ids
            span_id = _derived(span_id, start_ns.to_bytes(8, "big"))
        span.change_ids(span_id, _derived(parent_id, resource.head) if parent_id else span.parent_id)
        self._counts.changed_ids += 1
        warn_once(REPEATED)

    def _has_ids_of_another(self, span: ReceivedSpan, parent_id: str, process: str) -> bool:
        """Return whether another span or process has the ids of a span; if none has, remember them."""
        trace_id, span_id = span.trace_id, span.span_id
        own = [hash((trace_id, id_)) for id_ in (span_id, parent_id) if id_] if process else []
        if any(key in self._owners and self._owners[key] != process for key in own):
            return True
        if self._is_taken(trace_id, span_id, span.start_ns):
            return True
        for key in own:
            self._owners[key] = process
        return False

    def _is_taken(self, trace_id: str, span_id: str, start_ns: int) -> bool:
        """Return whether another span is known to have the ids; if none is, remember this one.

        A slot has 32 bits of the hash of the ids, and the lowest 32 bits of the start.
        """
        hashed = hash((trace_id, span_id))
        index, key = hashed % _SLOTS, hashed >> 20 & _LOW
        known, start = self._slots[index], start_ns & _LOW
        if known >> 32 == key and known & _LOW != start and known:
            return True
        self._slots[index] = key << 32 | start
        return False


def _derived(span_id: str, from_: bytes) -> str:
    key = blake2b(from_, digest_size=32).digest()
    return blake2b(bytes.fromhex(span_id), key=key, digest_size=8).hexdigest()
