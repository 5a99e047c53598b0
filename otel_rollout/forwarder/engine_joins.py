"""Put engines' spans that came without a trace header under their model calls, ahead of the deliveries.

A delivery stops at the first line that belongs to such a span and is undecided; other segments are
delivered. A thread reads ahead, remembers the model calls by the ids of their requests, and writes into the
ledger where each line belongs, before any exporter gets it. So all exporters get the same, also after a kill.
The thread reads nothing before the first such span is met.

A span waits until a call with its id was read, at most ``Waits.engine_call``. Then it is exported as
recorded, and counted. A span below one of an unknown trace may be in its right place, in a trajectory of
another machine. So it waits briefly, and it is exported and not counted if no call here has made it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from otel_rollout.account.ledger import EngineLine, Ledger
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.waits import waits
from otel_rollout.forwarder.engine_calls import Calls
from otel_rollout.otlp import engine_requests
from otel_rollout.otlp.engine_requests import Placement, Request
from otel_rollout.spool import layout
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.recorded_lines import recorded_lines
from otel_rollout.spool.waiting import WaitingPrograms

MAX_WAITING: Final = 10_000
"""Requests that wait at most. Before further ones their segment is not read, and the longest wait ends."""
READ_BYTES: Final = 8 << 20
"""Maximum bytes read from a segment at once."""
_MAX_SPANS: Final = 1 << 14
"""Engines' spans that are remembered for phases that are read later."""
_logger = logging.getLogger("otel_rollout.forwarder")


@dataclass(eq=False)
class _Span:
    """An engine's span without a trace header, and the phases below it.

    Attributes:
        request: its request.
        since: monotonic time at which it was read.
        position: segment and end of its line.
        phases: segment and end of the lines below it that are not in the ledger.
        is_decided: whether its place is known.
        placement: its place; None if it is exported as recorded.
    """

    request: Request
    since: float
    position: tuple[str, int]
    phases: list[tuple[str, int]] = field(default_factory=list)
    is_decided: bool = False
    placement: Placement | None = None

    def engine_lines(self) -> list[EngineLine]:
        """Return what the ledger says of its lines: nothing of phases that stay where they are."""
        stays = self.placement is None and self.request.has_parent
        positions = [self.position] if stays else [self.position, *self.phases]
        return [EngineLine(*position, self.placement) for position in positions]


class Resolved(NamedTuple):
    """What is exported of a line.

    Attributes:
        line: the line in the place where it belongs.
        is_left_out: whether it is sampled out.
    """

    line: bytes
    is_left_out: bool = False


class EngineJoins:
    """Decides where engines' spans without a trace header belong, in a thread of its own.

    Args:
        node_dir: holds the segments and the ledger.
        is_ours: returns whether this process still forwards the directory.
        is_wanted: whether an earlier forwarder has met such spans.
        leaves_out: whether spans that join no model call are sampled out: not everything is recorded, so they
            may belong to what is not.

    Attributes:
        is_over: set by the forwarder when no writer lives and segments are complete: no more lines come.
    """

    def __init__(
        self,
        node_dir: Path,
        is_ours: Callable[[], bool] = lambda: True,
        is_wanted: bool = False,
        leaves_out: bool = False,
    ) -> None:
        self.is_over = False
        self._node_dir = node_dir
        self._is_ours = is_ours
        self._leaves_out = leaves_out
        self._stop = threading.Event()
        self._wanted = threading.Event()
        if is_wanted:
            self._wanted.set()
        self._thread = threading.Thread(target=self._run, name="engine-joins", daemon=True)
        self._programs = WaitingPrograms(node_dir)
        self._positions: dict[str, int] = {}
        self._calls = Calls()
        self._waiting: dict[tuple[str, int], _Span] = {}
        self._late: list[_Span] = []
        self._undecided: set[tuple[str, int]] = set()
        self._spans: BoundedDict[tuple[str, str], _Span] = BoundedDict(_MAX_SPANS)
        self._reported = 0
        self._next_decision = 0.0
        self._next_forgetting = time.monotonic() + waits().engine_forget

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop the thread; the next forwarder reads undecided spans again."""
        self._stop.set()
        self._wanted.set()
        self._thread.join(timeout)

    def resolve(self, segment: str, end: int, line: bytes, ledger: Ledger) -> Resolved | None:
        """Return what is exported of a line; None while that is undecided. Called by other threads.

        Args:
            segment: stem of the segment that holds the line.
            end: byte offset in the segment at which the next line begins.
            line: the line as recorded.
            ledger: the caller's connection to the ledger.
        """
        is_request = engine_requests.is_without_call(line)
        if is_request:
            self._wanted.set()
        elif not self._wanted.is_set() or not engine_requests.is_phase(line):
            return Resolved(line)
        elif self._positions.get(segment, 0) < end or (segment, end) in self._undecided:
            return None
        decided = ledger.engine_line(segment, end)
        if decided is None:
            return None if is_request else Resolved(line)  # a phase of a span that came with a header
        if decided.placement is None:
            return Resolved(line, self._leaves_out and not (is_request and engine_requests.has_parent(line)))
        return Resolved(engine_requests.placed(line, decided.placement))

    def _run(self) -> None:
        self._wanted.wait()
        while not self._stop.is_set():
            try:
                with Ledger(self._node_dir, self._is_ours, self._resume) as ledger:
                    self._resume(ledger)
                    while not self._stop.is_set():
                        ledger.keep()
                        if not self._is_ours() or not self._look(ledger):
                            self._stop.wait(waits().idle)
            except Exception as error:
                unforeseen = not isinstance(error, sqlite3.Error)
                _logger.error("no engine's span can be joined at present: %s", error, exc_info=unforeseen)
                self._stop.wait(waits().error)

    def _resume(self, _: Ledger) -> None:
        """Read all segments again, for a ledger that may have been replaced.

        The calls are remembered, and so is which phases are undecided: they are read again.
        """
        self._positions.clear()
        self._waiting.clear()
        self._late.clear()
        self._spans.clear()

    def _look(self, ledger: Ledger) -> bool:
        """Read new lines and decide; return whether there were new lines."""
        is_over = self.is_over  # checked before reading: if set, no line comes after those read below
        is_new = is_behind = is_full = False
        present = layout.segments(self._node_dir)
        for name in present:
            before = self._positions.get(name.stem, 0)
            try:
                is_full |= self._read(name, before, ledger)
            except OSError:  # deliveries log the error; the file stays where it is
                continue
            read = self._positions.get(name.stem, 0) - before
            is_new |= read > 0
            is_behind |= read > READ_BYTES // 2
        self._decide(ledger, is_over and not is_new and not is_full, is_full and not is_behind)
        if time.monotonic() >= self._next_forgetting:
            self._next_forgetting = time.monotonic() + waits().engine_forget
            ledger.forget_engine_lines([name.stem for name in present])
        return is_new

    # --- reading ------------------------------------------------------------------------------------------

    def _read(self, name: SegmentName, position: int, ledger: Ledger) -> bool:
        """Read new lines of a segment; return whether there is no room for a request."""
        for line, end in recorded_lines(self._node_dir / name.file, position, READ_BYTES):
            if engine_requests.is_without_call(line):
                if len(self._waiting) >= MAX_WAITING:
                    return True
                self._add_request(name.stem, end, line, ledger)
            elif engine_requests.is_phase(line):
                self._add_phase(name.stem, end, line)
            else:
                self._calls.add(line)
            self._positions[name.stem] = end
        return False

    def _add_request(self, segment: str, end: int, line: bytes, ledger: Ledger) -> None:
        request = engine_requests.request_in(line)
        span = _Span(request or Request("", "", "", 0, 0), time.monotonic(), (segment, end))
        decided = ledger.engine_line(segment, end)
        if decided is not None:
            span.is_decided, span.placement = True, decided.placement
        else:
            self._waiting[segment, end] = span
        self._spans[span.request[:2]] = span

    def _add_phase(self, segment: str, end: int, line: bytes) -> None:
        span = self._spans.get(engine_requests.engine_span_of(line))
        if span is None:  # of a span that came with a header
            return
        self._undecided.add((segment, end))
        span.phases.append((segment, end))
        if span.is_decided:
            self._late.append(span)

    # --- deciding -----------------------------------------------------------------------------------------

    def _decide(self, ledger: Ledger, everything: bool, makes_room: bool) -> None:
        """Decide about requests whose call is found or whose wait is over; record it in the ledger."""
        now, times = time.monotonic(), waits()
        if now < self._next_decision and not everything:
            return
        self._next_decision = now + times.engine_look
        deadline = times.engine_call_waited if self._programs.is_any() else times.engine_call
        deadline = times.engine_settle if makes_room else deadline
        decided = {id(span): span for span in self._late}
        outcomes: Counter[str] = Counter()
        for position, span in list(self._waiting.items()):
            age = now - span.since
            if age < times.engine_settle and not everything:
                break  # later ones are younger
            patience = min(deadline, times.engine_parent) if span.request.has_parent else deadline
            found = self._calls.find(span.request, everything or age >= patience)
            if found is not None:
                outcome, span.placement = found
                if outcome:
                    outcomes[outcome] += 1
                span.is_decided = True
                decided[id(span)] = span
                del self._waiting[position]
        lines = [line for span in decided.values() for line in span.engine_lines()]
        if lines or len(self._waiting) != self._reported:
            ledger.place_engine_lines(lines, outcomes, len(self._waiting))
            self._reported = len(self._waiting)
        for span in decided.values():
            self._undecided.difference_update(span.phases)
            span.phases.clear()
        self._late.clear()
