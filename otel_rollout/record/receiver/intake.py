"""Record received spans with the run's writer.

A span counts as taken when its line is in the writer's journal, which survives the receiver.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.waits import waits
from otel_rollout.otlp import received, scan
from otel_rollout.otlp.json_line import UnreadableLineError, parsed_line, spans_of_json
from otel_rollout.otlp.received import ReceivedScope, RefusedSpanError
from otel_rollout.record.receiver.span_ids import SpanIds
from otel_rollout.record.recording.identity import NO_IDENTITY, Identity
from otel_rollout.record.recording.sampling import Decision
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.redaction.redaction import Redaction
from otel_rollout.spool import layout
from otel_rollout.spool.receiver_files import ReceiverCounts
from otel_rollout.spool.root_table import read_open

JOURNAL_BYTES: Final = 16 << 20
"""Bytes of the receiver's journal, which holds received lines while the disk is slow."""
_CHECK_INTERVAL: Final = 0.005
_TURN: Final = 200
"""Spans after which other requests get their turn."""
_HEAD_BYTES: Final = 8192
"""Bytes that the head of a line may have besides its body."""
_MAX_DECISIONS: Final = 1 << 16
_DOUBLE: Final = "was recorded by otel_rollout already"


class FullError(Exception):
    """Raised when the journal has no room for a request's spans within ``Waits.request_room``."""


@dataclass
class IntakeOutcome:
    """What became of a request's spans.

    Attributes:
        refused: number of spans that are not recorded because they are wrong.
        reason: why the first of them was refused.
    """

    refused: int = 0
    reason: str = ""

    def refuse(self, reason: str) -> None:
        """Note a refused span."""
        self.refused += 1
        self.reason = self.reason or reason


@dataclass(frozen=True)
class Policy:
    """Which spans are recorded, and how.

    Attributes:
        run_id: the run's id.
        redact: redacts a line before it is written.
        decision: head sampling of traces that belong to no trajectory of this machine; None records all.
        only_trajectories: whether traces that belong to no trajectory of this machine are refused.
    """

    run_id: str
    redact: Redaction | None = None
    decision: Decision | None = None
    only_trajectories: bool = False


class _Taken(NamedTuple):
    """A span to record.

    Attributes:
        scope: the span's scope.
        lines: the span's line and those of the phases below an engine's request, without the resource's head.
        identity: the identity of its trajectory.
    """

    scope: ReceivedScope
    lines: list[bytes]
    identity: Identity


class Intake:
    """Takes the spans of requests, one request at a time.

    Args:
        writer: records the spans; its resource is open.
        trajectories: the trajectories of this machine.
        counts: gets the numbers of spans.
        policy: which spans are recorded, and how.
        publish: publishes the numbers of spans before a request is acknowledged. Must not raise.
    """

    def __init__(
        self,
        writer: SegmentWriter,
        trajectories: Trajectories,
        counts: ReceiverCounts,
        policy: Policy,
        publish: Callable[[], object] = lambda: None,
    ) -> None:
        self._writer = writer
        self._trajectories = trajectories
        self._counts = counts
        self._policy = policy
        self._publish = publish
        self._decisions: BoundedDict[bytes, bool] = BoundedDict(_MAX_DECISIONS)
        self._span_ids = SpanIds(counts, policy.run_id)

    async def take(self, scopes: Iterable[ReceivedScope]) -> IntakeOutcome:
        """Record the spans of a request.

        Raises:
            FullError: the journal has no room. A part of the spans may be recorded; a sender that repeats the
                request sends them twice, with the same ids.
        """
        outcome = IntakeOutcome()
        try:
            await self._take(scopes, outcome)
        finally:
            self._publish()
        return outcome

    async def _take(self, scopes: Iterable[ReceivedScope], outcome: IntakeOutcome) -> None:
        self._trajectories.begin_request()
        deadline = time.monotonic() + waits().request_room
        for number, taken in enumerate(self._taken(scopes, outcome), 1):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            if taken is None:
                continue
            size = min(sum(map(len, taken.lines)) + len(taken.lines) * _HEAD_BYTES, JOURNAL_BYTES)
            while self._writer.room < size:
                if time.monotonic() > deadline:
                    raise FullError
                await asyncio.sleep(_CHECK_INTERVAL)
            self._record(taken)

    def _record(self, taken: _Taken) -> None:
        """Record a received span, and then the phases below it, which count as this package's own spans."""
        own, *phases = taken.lines
        if not self._write(taken, own):
            return
        self._writer.counters.recorded_by(taken.scope.name)
        self._counts.recorded += 1
        for line in phases:
            self._write(taken, line)

    def _write(self, taken: _Taken, line: bytes) -> bool:
        """Record a line; return False if it cannot be redacted.

        Raises:
            FullError: the journal has no room.
        """
        writer = self._writer
        writer.started()
        redact = self._policy.redact
        if redact is not None:
            try:
                line = redact(line)
            except Exception:  # noqa: BLE001 - of the application's function: sending again does not help
                writer.counters.drop("redaction", taken.identity)
                return False
        if not writer.write(taken.scope.resource.head + line, taken.identity):
            raise FullError
        return True

    def _taken(self, scopes: Iterable[ReceivedScope], outcome: IntakeOutcome) -> Iterator[_Taken | None]:
        """Yield the spans to record; None for a span that is not recorded."""
        for scope in scopes:
            run_id = scope.resource.run_id
            is_double = run_id == self._policy.run_id or (scope.name == semconv.SCOPE and not run_id)
            for given in scope.spans:
                try:
                    if is_double:
                        raise RefusedSpanError(_DOUBLE)
                    found = self._accept(scope, given)
                except RefusedSpanError as error:
                    outcome.refuse(str(error))
                    self._counts.refuse_span(str(error))
                    yield None
                else:
                    if found is None:
                        self._counts.sampled_out += 1
                    yield found

    def _accept(self, scope: ReceivedScope, given: object) -> _Taken | None:
        """Return what to record of a span; None if its trace is sampled out."""
        span = scope.decode(given)
        trace_id = bytes.fromhex(span.trace_id)
        known = self._trajectories.find(trace_id)
        if known is not None and not span.parent_id:
            span.put_below(known.span_id)
        if known is None and self._policy.only_trajectories:
            raise RefusedSpanError("belongs to no trajectory of this machine")
        self._span_ids.make_unique(scope, span, "" if known is None else known.span_id)
        if known is None and not self._is_recorded(trace_id, span.name):
            return None
        identity = NO_IDENTITY if known is None else known.identity
        encoded = identity.encoded or identity.encode()
        line = received.line_of(scope, span, encoded)
        return _Taken(scope, [line, *received.phase_lines_of(span, encoded)], identity)

    def _is_recorded(self, trace_id: bytes, name: str) -> bool:
        decision = self._policy.decision
        if decision is None:
            return True
        decided = self._decisions.get(trace_id)
        if decided is None:
            decided = self._decisions[trace_id] = decision(int.from_bytes(trace_id, "big"), name)
        return decided


# --- the trajectories of this machine, by their trace ids ---------------------------------------------------


_MAX_KNOWN: Final = 1 << 16
"""Trajectories whose identity is remembered, also after their end: senders export in batches."""


class Known(NamedTuple):
    """A trajectory of this machine.

    Attributes:
        identity: its identity.
        span_id: the id of its root span, in hex.
        is_root: whether the trajectory is not part of another one.
    """

    identity: Identity
    span_id: str
    is_root: bool


class Trajectories:
    """Finds the identity of trajectories in the root tables of the recording processes.

    Args:
        node_dir: the node directory.
    """

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._known: BoundedDict[bytes, Known] = BoundedDict(_MAX_KNOWN)
        self._seen: dict[str, dict[int, int]] = {}
        self._is_stale = True

    def begin_request(self) -> None:
        """Note that trajectories may have begun: the next unknown trace id is looked up in the tables."""
        self._is_stale = True

    def find(self, trace_id: bytes) -> Known | None:
        """Return the trajectory of a trace id; None if this machine does not record it."""
        found = self._known.get(trace_id)
        if found is None and self._is_stale:
            self.read()
            found = self._known.get(trace_id)
        return found

    def read(self) -> None:
        """Read the root tables.

        Call this from time to time, because a table forgets a trajectory some time after its end.
        """
        self._is_stale = False
        writers = layout.journals(self._node_dir)
        self._seen = {writer: self._seen.get(writer, {}) for writer in writers}
        for writer in writers:
            for line in read_open(self._node_dir / (writer + layout.OPEN_SUFFIX), self._seen[writer]):
                self._note(line)

    def _note(self, line: bytes) -> None:
        trace_id, is_root = scan.trace_id_of(line), scan.may_have_root(line)
        if trace_id is None:
            return
        known = self._known.get(trace_id)
        if known is not None and (known.is_root or not is_root):
            return
        try:
            (span,) = spans_of_json(parsed_line(line))
            attributes = span.scalars()
            identity = Identity({key: attributes.get(key) for key in semconv.IDENTITY})
            self._known[trace_id] = Known(identity, span.span_id, is_root)
        except (UnreadableLineError, ValueError, KeyError, TypeError):  # the slot is being written
            return
