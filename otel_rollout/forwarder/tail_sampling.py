"""Which groups are delivered, where their outcome decides: read ahead of deliveries, decided once, noted.

It reads what deliveries will read, and writes to the ledger of which traces they deliver the spans. They go
no further in a segment than that is known. A group is decided when it is complete: its trajectories have
ended, as many as it says it has, or none has come for a while; and their scores are there, if those count. It
is decided by what is known when its deadline is over, when no writer lives, or when somebody waits for
everything to be delivered.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from otel_rollout.account.ledger import Ledger, Outcome
from otel_rollout.forwarder.tail_rules import Judge, Trajectory, trace_of
from otel_rollout.recording.sampling import Group
from otel_rollout.settings import Settings
from otel_rollout.spool import layout, segments
from otel_rollout.spool.root_table import read_open

LOOK_INTERVAL = 0.2
RUNNING_INTERVAL = 1.0
"""Seconds between looks at which trajectories are running."""
QUIET = 5.0
"""Seconds without a new sibling after which a group is complete that does not say how many it has."""
DRAINING = 2.0
"""Seconds in which what has ended is decided at once, after somebody has begun to wait for all of it."""
READ_BYTES = 8 << 20
_REMEMBERED = 1 << 16
"""Traces and groups whose verdict is remembered; of others the ledger is asked."""
_PAUSE = 2.0
_logger = logging.getLogger("otel_rollout.forwarder")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Selection:
    """Decides about the groups in a node directory, in a thread of its own.

    Args:
        node_dir: what is delivered.
        configured: by which outcomes, to which exporters.
        is_ours: whether it is still ours to deliver.

    Attributes:
        is_over: to be set when no writer lives and all is complete: nothing more comes.
    """

    def __init__(self, node_dir: Path, configured: Settings, is_ours: Callable[[], bool]) -> None:
        self.is_over = False
        self._node_dir = node_dir
        self._settings = configured
        self._is_ours = is_ours
        self._judge = Judge(configured.tail_rules, configured.outcome_bytes, configured.sample_seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="select", daemon=True)
        self._positions: dict[str, int] | None = None
        self._waiting: dict[bytes, Trajectory] = {}
        """The traces that are not decided."""
        self._decided: dict[bytes, bool] = {}
        self._verdicts: dict[Group, bool | None] = {}
        self._running: set[Group] = set()
        self._next_look = 0.0
        self._drain_noticed = 0
        self._draining_until = 0.0

    def start(self) -> None:
        """Begin deciding."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop; what is not decided is looked at anew by the next one."""
        self._stop.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with Ledger(self._node_dir, self._is_ours, self._take_up) as self._ledger:
                    self._take_up(self._ledger)
                    self._verdicts.clear()  # what was interrupted may have been noted all the same
                    while not self._stop.is_set():
                        self._ledger.keep()
                        if not self._is_ours() or not self._look():
                            self._stop.wait(LOOK_INTERVAL)
            except Exception as error:
                unforeseen = not isinstance(error, sqlite3.Error)
                _logger.error("no group can be decided at present: %s", error, exc_info=unforeseen)
                self._stop.wait(_PAUSE)

    def _take_up(self, ledger: Ledger) -> None:
        """Go on from what a ledger says; or, where it had to be begun anew, from what is known here."""
        latest = next(reversed(self._decided), None)
        if latest is None or ledger.is_kept(latest) is not None:
            self._judge.spent = ledger.kept_bytes()
            return
        ledger.decide((), self._decided)
        self._positions = None  # what is known here no more has to be decided again
        self._waiting.clear()

    def _look(self) -> bool:
        """Read on, and decide what can be; whether there was anything to read."""
        is_over = self.is_over  # before reading: what is read afterwards is all there is
        is_drained = self._is_drained()
        self._look_at_running()
        is_news = self._read()
        if is_news and is_drained:
            self._draining_until = time.monotonic() + DRAINING
        if self._waiting:
            self._decide(is_over and not is_news, is_drained and not is_news)
        return is_news

    def _look_at_running(self) -> None:
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + RUNNING_INTERVAL
        self._running = set()
        for writer in layout.journals(self._node_dir):  # of dead ones too: they are about to be ended
            with contextlib.suppress(OSError):  # a table that cannot be read costs what is in it
                self._running.update(self._running_groups(writer))

    def _running_groups(self, writer: str) -> Iterator[Group]:
        for line in read_open(self._node_dir / (writer + layout.OPEN_SUFFIX)):
            running = Trajectory(self._settings.outcome_score)
            running.note(line)
            if running.group is not None:
                yield running.group

    def _is_drained(self) -> bool:
        """Whether somebody has just begun to wait for everything."""
        try:
            touched = (self._node_dir / layout.DRAINING).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if touched != self._drain_noticed:
            self._drain_noticed = touched
            self._draining_until = time.monotonic() + DRAINING
            self._next_look = 0.0
        return time.monotonic() < self._draining_until

    # --- reading ------------------------------------------------------------------------------------------

    def _read(self) -> bool:
        if self._positions is None:
            self._positions = self._first_positions()
        is_news = False
        for name in layout.segments(self._node_dir):
            position = self._positions.get(name.stem, 0)
            try:
                for line, end in segments.complete_lines(self._node_dir / name.file, position, READ_BYTES):
                    is_news = True
                    self._note(line)
                    self._positions[name.stem] = end
            except OSError:  # deliveries say so; what it holds stays where it is
                continue
        return is_news

    def _first_positions(self) -> dict[str, int]:
        """Where to begin: what not every exporter is done with may be of groups that are not decided."""
        cursors = [self._ledger.cursors(name) for name in self._settings.exporters]
        stems = {stem for positions in cursors for stem in positions}
        return {stem: min(positions.get(stem, 0) for positions in cursors) for stem in stems}

    def _note(self, line: bytes) -> None:
        trace = trace_of(line)
        if trace is None or trace in self._decided:
            return
        trajectory = self._waiting.get(trace)
        if trajectory is None:
            known = self._ledger.is_kept(trace)
            if known is not None:
                _remember(self._decided, trace, known)
                return
            trajectory = self._waiting[trace] = Trajectory(self._settings.outcome_score)
        trajectory.note(line)

    # --- deciding -----------------------------------------------------------------------------------------

    def _decide(self, everything: bool, what_ended: bool) -> None:
        """Decide what can be; of everything, or of what is not running, however little is known of it."""
        at_once = everything or what_ended
        traces: dict[bytes, bool] = {}
        groups: dict[Group, dict[bytes, Trajectory]] = {}
        for trace, trajectory in self._waiting.items():
            group = trajectory.group
            verdict = True if group is None else self._verdict_before(group)  # of no group: always delivered
            if group is not None and verdict is None:
                groups.setdefault(group, {})[trace] = trajectory
            elif verdict is not None and (at_once or trajectory.ended or self._is_late(trajectory)):
                traces[trace] = verdict  # before its root says so, it may be of another group
        complete = {}
        for group, siblings in groups.items():
            if everything or self._is_complete(group, list(siblings.values()), what_ended):
                complete[group] = siblings
        outcomes = self._judged(complete)
        for group, outcome in outcomes.items():
            traces |= dict.fromkeys(complete[group], outcome.kept)
        if traces:
            self._ledger.decide(outcomes.values(), traces)
        for group, outcome in outcomes.items():
            _remember(self._verdicts, group, outcome.kept)
        for trace, kept in traces.items():
            self._waiting.pop(trace, None)  # it may have been begun anew meanwhile
            _remember(self._decided, trace, kept)

    def _verdict_before(self, group: Group) -> bool | None:
        """What was decided about the group before these traces of it came."""
        if group not in self._verdicts:
            _remember(self._verdicts, group, self._ledger.is_group_kept(_name(group)))
        return self._verdicts[group]

    def _is_complete(self, group: Group, siblings: Sequence[Trajectory], what_ended: bool) -> bool:
        if any(map(self._is_late, siblings)):
            return True
        if group in self._running:
            return False
        if what_ended:
            return True
        if not all(t.ended and (t.scored or not self._judge.needs_scores) for t in siblings):
            return False
        size = max(t.group_size for t in siblings)
        return len(siblings) >= size if size else time.monotonic() - max(t.latest for t in siblings) >= QUIET

    def _is_late(self, trajectory: Trajectory) -> bool:
        return time.monotonic() - trajectory.since >= self._settings.outcome_deadline

    def _judged(self, complete: Mapping[Group, Mapping[bytes, Trajectory]]) -> dict[Group, Outcome]:
        """What becomes of groups. Errors are admitted first: there may not be room for all."""
        groups = {group: list(siblings.values()) for group, siblings in complete.items()}
        for group, siblings in groups.items():
            self._judge.learn(group, siblings)
        verdicts = {group: self._judge.judge(group, siblings) for group, siblings in groups.items()}
        admitted = {}
        for group in sorted(groups, key=lambda group: verdicts[group].reason != "errors"):
            size = sum(trajectory.size for trajectory in groups[group])
            verdict = self._judge.admit(_name(_step(group)), verdicts[group], size)
            admitted[group] = Outcome(_name(group), _name(_step(group)), size, *verdict)
        return admitted


def _step(group: Group) -> Group:
    """The step as a group of its own."""
    return group._replace(sample_index=None)


def _name(group: Group) -> str:
    return json.dumps(group)


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Remember the latest; the oldest is forgotten."""
    while len(known) >= _REMEMBERED:
        del known[next(iter(known))]
    known[key] = value
