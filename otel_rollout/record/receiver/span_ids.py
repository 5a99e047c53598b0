"""Give a received span another id if one of our own spans, or a different span of its trace, has the id.

Our own ids have the run's mark (:func:`otel_rollout.record.recording.provider.mark_of`). So the receiver need
not know whether our span has ended, or on which node. A received span with such an id gets an id that is made
from the old id, the sender and the span's start.

OpenTelemetry's SDK for Python draws ids from Python's global random numbers. A program that seeds them, as
vLLM does in each of its workers, makes the ids of every other process with that seed again. In one trace, the
later span would overwrite the earlier one in most backends.

Spans with equal trace id and span id are different spans if their starts differ: a span that is sent again
has the same start. They are different, too, if their senders name different process ids. A sender that
repeats ids is often known before two spans with one id have come: a span also names the id of its parent in
the process, and a child ends, and is sent, before its parent.

Once a process repeats ids of a trace, all further ids of that process in that trace are changed, also those
of parents in the process, by a function of the id and the process. So a span that is sent again gets the same
id again, and children find their parents.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Final

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.errors import warn_once
from otel_rollout.otlp.received import ReceivedResource, ReceivedScope
from otel_rollout.otlp.span import Span
from otel_rollout.record.recording.provider import mark_of
from otel_rollout.spool.receiver_files import ReceiverCounts

_SLOTS: Final = 1 << 20
"""Number of spans that are remembered, in 8 MiB; a newer span may take the place of an older one."""
_MAX_OWNED: Final = 1 << 14
"""Maximum number of ids that are remembered with their process."""
_MAX_CHANGED: Final = 1 << 12
"""Maximum pairs of trace and process whose ids are changed, and maximum ids of ours that processes gave to
their own spans."""
_LOW: Final = 0xFFFF_FFFF
REPEATED: Final = (
    "spans came with ids of other spans of their trace, and got new ones: a program draws ids from random "
    "numbers that it seeds, as vLLM does in its workers. Nothing is lost; to keep that program's ids, give "
    "its tracer provider an id_generator that draws from random.SystemRandom()"
)
"""Warning about the first span whose id repeats that of another span."""
OURS: Final = (
    "spans came with ids of this run's own spans, and got new ones: a sender takes the span id of its "
    "TRACEPARENT for its own span. Nothing is lost; that id is the parent's: draw a random one for each span"
)
"""Warning about the first span with an id of ours."""


class SpanIds:
    """Remembers the ids of recent spans in bounded memory, and changes repeated ones.

    Args:
        counts: gets the number of changed ids.
        run_id: the run, whose own spans have marked ids.
    """

    def __init__(self, counts: ReceiverCounts, run_id: str) -> None:
        self._counts = counts
        self._mark = mark_of(run_id).decode()
        self._left: BoundedDict[int, str] = BoundedDict(_MAX_CHANGED)
        self._slots = array("Q", bytes(8 * _SLOTS))
        self._owners: BoundedDict[int, str] = BoundedDict(_MAX_OWNED)
        self._changed: BoundedDict[int, None] = BoundedDict(_MAX_CHANGED)

    def make_unique(self, scope: ReceivedScope, span: Span, root_id: str = "") -> None:
        """Change a span's id, and its parent's, if the id is one of ours, or if its process repeats ids.

        Args:
            scope: the span's scope; its resource stands for the process.
            span: the span, which is changed.
            root_id: the id of its trajectory's root, which has no mark if the application draws our ids.
        """
        sent_id = span.span_id
        self._leave_ours(scope.resource.head, span, root_id)
        is_of_sender = span.has_local_parent and not self._is_ours(span.parent_id, root_id)
        self._tell_apart(scope.resource, span, span.parent_id if is_of_sender else "")
        self._counts.changed_ids += span.span_id != sent_id

    def _is_ours(self, span_id: str, root_id: str) -> bool:
        return span_id.startswith(self._mark) or span_id == root_id

    def _leave_ours(self, sender: bytes, span: Span, root_id: str) -> None:
        """Change a span's id if it is one of ours.

        Later spans of the same process below that span get the new id as their parent's.
        """
        trace_id, span_id, parent_id = span.trace_id, span.span_id, span.parent_id
        if span.has_local_parent:
            parent_id = self._left.get(hash((trace_id, sender, parent_id)), parent_id)
        if self._is_ours(span_id, root_id):
            if not parent_id:  # the root is on another node, and stays the only one
                span.put_below(parent_id := span_id)
            span_id = _derived(span_id, sender + span.start_ns.to_bytes(8, "big"))
            self._left[hash((trace_id, sender, span.span_id))] = span_id
            warn_once(OURS)
        span.change_ids(span_id, parent_id)

    def _tell_apart(self, resource: ReceivedResource, span: Span, parent_id: str) -> None:
        """Change a span's ids if its process makes ids that another process has made, too.

        Args:
            resource: the process.
            span: the span, which is changed.
            parent_id: id of the span's parent if the parent is in the same process; else empty.
        """
        trace_id, start_ns = span.trace_id, span.start_ns
        sender = hash((trace_id, resource.head))
        if sender not in self._changed:
            if not self._has_ids_of_another(span, parent_id, resource.process):
                return
            self._changed[sender] = None
        span_id = _derived(span.span_id, resource.head)
        if self._is_taken(trace_id, span_id, start_ns):  # the process repeats its own ids
            span_id = _derived(span_id, start_ns.to_bytes(8, "big"))
        span.change_ids(span_id, _derived(parent_id, resource.head) if parent_id else span.parent_id)
        warn_once(REPEATED)

    def _has_ids_of_another(self, span: Span, parent_id: str, process: str) -> bool:
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
