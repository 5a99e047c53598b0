"""Decide by their outcome which groups are exported, ahead of the deliveries.

The ledger has a decision for each trace of a group. A delivery stops at the first line whose trace is
undecided. A group is decided when it is complete: all its trajectories have ended, and have scores if a rule
uses scores. A group of unknown size is complete when no sibling has come for a while. An incomplete group is
decided when its deadline is over, when no writer lives, or when a process waits for delivery.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from otel_rollout.account.ledger import Ledger, Outcome
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.waits import waits
from otel_rollout.deliver.forwarder_thread import ForwarderThread
from otel_rollout.deliver.tail_rules import TailRules
from otel_rollout.otlp.groups import Group
from otel_rollout.otlp.outcome import TrajectoryOutcome, trajectories_in
from otel_rollout.otlp.scan import trace_id_of
from otel_rollout.settings import Settings
from otel_rollout.spool import layout
from otel_rollout.spool.root_table import read_open
from otel_rollout.spool.segments import recorded_lines

READ_BYTES = 8 << 20
"""Maximum bytes read from a segment at once."""
_MAX_REMEMBERED = 1 << 16
"""Maximum traces, and maximum groups, whose decision is kept in memory; the ledger has all decisions."""


class Undecided(TrajectoryOutcome):
    """A trace whose group is undecided.

    Attributes:
        first_seen: monotonic time of the first line.
        last_seen: monotonic time of the last line.
        size: bytes of its lines.
    """

    def __init__(self, score: str) -> None:
        super().__init__(score)
        self.first_seen = self.last_seen = time.monotonic()
        self.size = 0

    def add(self, line: bytes) -> None:
        """Add a line of the trace; of an unreadable line only the size counts."""
        self.last_seen = time.monotonic()
        self.size += len(line)
        super().add(line)


class TailSampling(ForwarderThread):
    """Decides about the groups in a node directory, in a thread of its own.

    Args:
        node_dir: holds the segments and the ledger.
        configured: settings of the run.
        is_ours: returns whether this process still forwards the directory.

    Attributes:
        is_over: set by the forwarder when no writer lives and segments are complete: no more lines come.
    """

    _ledger: Ledger
    """The ledger that the thread has opened."""

    def __init__(self, node_dir: Path, configured: Settings, is_ours: Callable[[], bool]) -> None:
        super().__init__("tail-sampling")
        self.is_over = False
        self._node_dir = node_dir
        self._settings = configured
        self._is_ours = is_ours
        self._rules = TailRules(configured.tail_rules, configured.outcome_bytes, configured.sample_seed)
        self._positions: dict[str, int] | None = None
        self._undecided: dict[bytes, Undecided] = {}
        self._decided: BoundedDict[bytes, bool] = BoundedDict(_MAX_REMEMBERED)
        self._decided_groups: BoundedDict[Group, bool | None] = BoundedDict(_MAX_REMEMBERED)
        self._running: set[Group] = set()
        self._next_running_look = 0.0
        self._drain_time_ns = 0
        self._draining_until = 0.0

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                with Ledger(self._node_dir, self._is_ours, self._resume) as self._ledger:
                    self._resume(self._ledger)
                    self._decided_groups.clear()  # an interrupted decision may be in the ledger
                    while not self._stop.is_set():
                        self._ledger.keep()
                        if not self._is_ours() or not self._look():
                            self._stop.wait(waits().idle)
            except Exception as error:
                unforeseen = not isinstance(error, sqlite3.Error)
                logger.error("tail sampling cannot decide at present: %s", error, exc_info=unforeseen)
                self._stop.wait(waits().error)

    def _resume(self, ledger: Ledger) -> None:
        """Continue from a ledger; write remembered decisions into a replaced one."""
        latest = [*self._decided][-1:]
        if not latest or ledger.is_kept(latest[0]) is not None:
            self._rules.spent = ledger.kept_bytes()
            return
        ledger.decide((), self._decided)
        self._positions = None  # decisions that are no longer in memory have to be made again
        self._undecided.clear()

    def _look(self) -> bool:
        """Read new lines and decide groups; return whether there were new lines."""
        is_over = self.is_over  # checked before reading: if set, no line comes after those read below
        is_drained = self._is_drained()
        self._look_at_running()
        is_new = self._read()
        if is_new and is_drained:
            self._draining_until = time.monotonic() + waits().draining
        if self._undecided:
            self._decide(is_over and not is_new, is_drained and not is_new)
        return is_new

    def _look_at_running(self) -> None:
        if time.monotonic() < self._next_running_look:
            return
        self._next_running_look = time.monotonic() + waits().running_look
        self._running = set()
        # Dead writers too: crash recovery may not have ended their trajectories yet.
        for writer in layout.journals(self._node_dir):
            with contextlib.suppress(OSError):  # an unreadable root table affects only its own groups
                for line in read_open(self._node_dir / (writer + layout.OPEN_SUFFIX)):
                    running = TrajectoryOutcome(self._settings.outcome_score)
                    running.add(line)
                    if running.group is not None:
                        self._running.add(running.group)

    def _is_drained(self) -> bool:
        """Return whether a process has just begun to wait for delivery."""
        try:
            touched = (self._node_dir / layout.DRAINING).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if touched != self._drain_time_ns:
            self._drain_time_ns = touched
            self._draining_until = time.monotonic() + waits().draining
            self._next_running_look = 0.0
        return time.monotonic() < self._draining_until

    # --- reading ------------------------------------------------------------------------------------------

    def _read(self) -> bool:
        """Read new lines of every segment; return whether there were any."""
        if self._positions is None:
            self._positions = self._first_positions()
        is_new = False
        for name in layout.segments(self._node_dir):
            position = self._positions.get(name.stem, 0)
            with contextlib.suppress(OSError):  # deliveries log the error; the file stays where it is
                for line, end in recorded_lines(self._node_dir / name.file, position, READ_BYTES):
                    is_new = True
                    self._add(line)
                    self._positions[name.stem] = end
        return is_new

    def _first_positions(self) -> dict[str, int]:
        """Return segment → the position of the exporter that is furthest behind."""
        cursors = [self._ledger.cursors(name) for name in self._settings.exporters]
        stems = {stem for positions in cursors for stem in positions}
        return {stem: min(positions.get(stem, 0) for positions in cursors) for stem in stems}

    def _add(self, line: bytes) -> None:
        trace_id = trace_id_of(line)
        if trace_id is None or trace_id in self._decided:
            return
        trajectory = self._undecided.get(trace_id)
        if trajectory is None:
            is_kept = self._ledger.is_kept(trace_id)
            if is_kept is not None:
                self._decided[trace_id] = is_kept
                return
            trajectory = self._undecided[trace_id] = Undecided(self._settings.outcome_score)
        trajectory.add(line)

    # --- deciding -----------------------------------------------------------------------------------------

    def _decide(self, everything: bool, include_ended: bool) -> None:
        """Decide all complete groups, and record the decisions in the ledger.

        Args:
            everything: whether to decide all other groups too.
            include_ended: whether to decide other groups without a running trajectory too.
        """
        traces: dict[bytes, bool] = {}
        groups: dict[Group, dict[bytes, Undecided]] = {}
        for trace_id, trajectory in self._undecided.items():
            group = trajectory.group
            # A trace without group is always exported.
            is_kept = True if group is None else self._earlier_decision(group)
            if group is not None and is_kept is None:
                groups.setdefault(group, {})[trace_id] = trajectory
            elif is_kept is not None and (
                everything or include_ended or trajectory.has_ended or self._is_late(trajectory)
            ):
                # Not before the root has been read: until then the trajectory's group may change.
                traces[trace_id] = is_kept
        complete = {
            group: siblings
            for group, siblings in groups.items()
            if everything or self._is_complete(group, list(siblings.values()), include_ended)
        }
        outcomes = self._outcomes(complete)
        for group, siblings in complete.items():
            # A group without outcome has scores by identity alone, of trajectories elsewhere.
            traces |= dict.fromkeys(siblings, outcomes[group].kept if group in outcomes else True)
        if traces:
            self._ledger.decide(outcomes.values(), traces)
        for group, outcome in outcomes.items():
            self._decided_groups[group] = outcome.kept
        for trace_id, is_kept in traces.items():
            self._undecided.pop(trace_id, None)  # _resume() may have cleared it, for a replaced ledger
            self._decided[trace_id] = is_kept

    def _earlier_decision(self, group: Group) -> bool | None:
        """Return the earlier decision about a group; None if there is none."""
        if group not in self._decided_groups:
            self._decided_groups[group] = self._ledger.is_group_kept(_name(group))
        return self._decided_groups[group]

    def _is_complete(self, group: Group, traces: Sequence[Undecided], include_ended: bool) -> bool:
        if any(map(self._is_late, traces)):
            return True
        if group in self._running:
            return False
        if include_ended:
            return True
        siblings = trajectories_in(traces)
        if not siblings:
            return False
        if not all(t.has_ended and (t.is_scored or not self._rules.needs_scores) for t in siblings):
            return False
        size = max(t.group_size for t in siblings)
        if size:
            return len(siblings) >= size
        return time.monotonic() - max(t.last_seen for t in siblings) >= waits().group_quiet

    def _is_late(self, trajectory: Undecided) -> bool:
        return time.monotonic() - trajectory.first_seen >= self._settings.outcome_deadline

    def _outcomes(self, complete: Mapping[Group, Mapping[bytes, Undecided]]) -> dict[Group, Outcome]:
        """Apply the rules to complete groups; groups with errors get the budget first."""
        groups = {group: trajectories_in(traces.values()) for group, traces in complete.items()}
        groups = {group: siblings for group, siblings in groups.items() if siblings}
        for group, siblings in groups.items():
            self._rules.learn(group, siblings)
        decisions = {group: self._rules.decide(group, siblings) for group, siblings in groups.items()}
        outcomes = {}
        for group in sorted(groups, key=lambda group: decisions[group].reason != "errors"):
            size = sum(trace.size for trace in complete[group].values())
            decision = self._rules.admit(_name(_step(group)), decisions[group], size)
            outcomes[group] = Outcome(_name(group), _name(_step(group)), size, *decision)
        return outcomes


def _step(group: Group) -> Group:
    """Return a group that stands for the whole step: without sample index."""
    return group._replace(sample_index=None)


def _name(group: Group) -> str:
    return json.dumps(group)
