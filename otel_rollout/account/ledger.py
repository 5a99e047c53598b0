"""Record delivery in the ledger, an SQLite file that only the forwarder writes.

The ledger has a cursor per exporter and segment, and counts per step. With tail sampling, it also has the
decided groups, and for each of their traces whether it is delivered.

Cursors and counts change in one transaction, after the target has answered, so that they always agree. A
forwarder that is killed between answer and transaction sends the batch again, unless the exporter commits
numbered batches: then the ledger records the batch before it is committed, and the target says whether it
was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from otel_rollout.account.ledger_file import LedgerFile
from otel_rollout.account.ledger_reader import Tally
from otel_rollout.exporting.api import ExportFailure
from otel_rollout.otlp.scan import StepKey


class Outcome(NamedTuple):
    """The decision of tail sampling about a group.

    Attributes:
        name: name of the group.
        step: name of the group's step.
        size: bytes of the group's spans.
        kept: whether the group is delivered.
        reason: why the group is delivered, or why not.
    """

    name: str
    step: str
    size: int
    kept: bool
    reason: str


@dataclass(frozen=True)
class NumberedBatch:
    """The newest batch that an exporter has begun to commit.

    Attributes:
        writer: id by which the target knows the exporter's batches. A new ledger has a new id.
        number: number of the batch; 0 before the first.
        ends: segment → end of the batch's lines, which begin at the exporter's cursor. None once the batch is
            committed.
    """

    writer: str
    number: int = 0
    ends: Mapping[str, int] | None = None


class HeldScore(NamedTuple):
    """A score by identity that waits for its trajectory.

    Attributes:
        segment: stem of the segment that holds its line.
        end: byte offset in the segment at which the next line begins.
        line: the recorded line.
        since: Unix time in seconds at which the forwarder read the line.
    """

    segment: str
    end: int
    line: bytes
    since: float


class Ledger(LedgerFile):
    """The forwarder's access to its ledger; see :class:`LedgerFile` for arguments."""

    def cursors(self, exporter: str) -> dict[str, int]:
        """Return segment → bytes that ``exporter`` is done with."""
        rows = self._db.execute("SELECT segment, position FROM cursor WHERE exporter = ?", (exporter,))
        return dict(rows.fetchall())

    def tallies(self, exporter: str) -> dict[StepKey, Tally]:
        """Return step → spans that ``exporter`` is done with."""
        rows = self._db.execute(
            "SELECT step, validate, delivered, rejected, left_out FROM step WHERE exporter = ?", (exporter,)
        )
        return {StepKey(step, bool(validate)): Tally(*counts) for step, validate, *counts in rows}

    def advance(
        self,
        exporter: str,
        positions: Mapping[str, int],
        tallies: Mapping[StepKey, Tally],
        held: Sequence[HeldScore] = (),
    ) -> None:
        """Move an exporter's cursors, add to its counts, and clear its failure and its batch.

        Args:
            exporter: name of the exporter.
            positions: segment → bytes that the exporter is done with.
            tallies: step → spans that were done since the last call.
            held: scores by identity before the cursors, which wait for their trajectories.
        """
        with self._change():
            self._db.executemany(
                "INSERT INTO cursor VALUES (?, ?, ?) "
                "ON CONFLICT (exporter, segment) DO UPDATE SET position = excluded.position",
                [(exporter, segment, position) for segment, position in positions.items()],
            )
            self._db.executemany(
                "INSERT OR IGNORE INTO held_score VALUES (?, ?, ?, ?, ?)",
                [(exporter, score.segment, score.end, score.line, score.since) for score in held],
            )
            self._add(exporter, tallies)
            self._db.execute("UPDATE attempt SET kind = NULL WHERE exporter = ?", (exporter,))
            self._db.execute("UPDATE batch SET ends = NULL WHERE exporter = ?", (exporter,))
            self._note_destination(exporter)

    def batch(self, exporter: str) -> NumberedBatch | None:
        """Return the newest batch of an exporter; None before the first."""
        query = "SELECT writer, number, ends FROM batch WHERE exporter = ?"
        row = self._db.execute(query, (exporter,)).fetchone()
        if row is None:
            return None
        writer, number, ends = row
        return NumberedBatch(writer, number, None if ends is None else json.loads(ends))

    def note_batch(self, exporter: str, batch: NumberedBatch) -> None:
        """Record a batch before it is committed; :meth:`advance` records the commit."""
        ends = None if batch.ends is None else json.dumps(batch.ends)
        with self._change():
            self._db.execute(
                "INSERT OR REPLACE INTO batch VALUES (?, ?, ?, ?)",
                (exporter, batch.writer, batch.number, ends),
            )

    def _add(self, exporter: str, tallies: Mapping[StepKey, Tally]) -> None:
        self._db.executemany(
            "INSERT INTO step VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (exporter, step, validate) DO UPDATE SET "
            "delivered = delivered + excluded.delivered, rejected = rejected + excluded.rejected, "
            "left_out = left_out + excluded.left_out",
            [
                (exporter, key.step, key.validate, tally.delivered, tally.rejected, tally.sampled_out)
                for key, tally in tallies.items()
            ],
        )

    def held_scores(self, exporter: str) -> list[HeldScore]:
        """Return the scores by identity that wait for their trajectories."""
        query = "SELECT segment, end, line, since FROM held_score WHERE exporter = ? ORDER BY since"
        return [HeldScore(*row) for row in self._db.execute(query, (exporter,))]

    def release(
        self,
        exporter: str,
        scores: Iterable[HeldScore],
        tallies: Mapping[StepKey, Tally],
        unresolved: Mapping[str, int],
    ) -> None:
        """Remove scores that no longer wait, and add to the exporter's counts.

        Args:
            exporter: name of the exporter.
            scores: delivered and rejected scores.
            tallies: step → the scores of the step.
            unresolved: reason → scores that belong to no trajectory.
        """
        with self._change():
            self._db.executemany(
                "DELETE FROM held_score WHERE exporter = ? AND segment = ? AND end = ?",
                [(exporter, score.segment, score.end) for score in scores],
            )
            self._add(exporter, tallies)
            self._db.executemany(
                "INSERT INTO unresolved_score VALUES (?, ?, ?) "
                "ON CONFLICT (exporter, reason) DO UPDATE SET scores = scores + excluded.scores",
                [(exporter, reason, number) for reason, number in unresolved.items()],
            )

    def note_failure(self, exporter: str, failure: ExportFailure, is_retry: bool = True) -> None:
        """Record why an exporter cannot deliver; with ``is_retry`` count the retry too."""
        with self._change():
            self._db.execute(
                "INSERT INTO attempt VALUES (?, ?, ?, ?) ON CONFLICT (exporter) DO UPDATE SET "
                "failed = failed + excluded.failed, kind = excluded.kind, message = excluded.message",
                (exporter, int(is_retry), failure.kind.value, failure.message),
            )
            self._note_destination(exporter)

    def _note_destination(self, exporter: str) -> None:
        if exporter in self.destinations:
            destination = self.destinations[exporter]
            self._db.execute("INSERT OR REPLACE INTO destination VALUES (?, ?)", (exporter, destination))

    def forget_failures(self, exporters: Iterable[str]) -> None:
        """Clear an earlier forwarder's failures at these exporters; it may have lacked credentials."""
        with self._change():
            names = [(name,) for name in exporters]
            self._db.executemany("UPDATE attempt SET kind = NULL WHERE exporter = ?", names)

    def note_link(self, exporter: str, run: str, problem: str | None) -> None:
        """Record the tracker's run that traces are linked to, or why they are not."""
        with self._change():
            self._db.execute("INSERT OR REPLACE INTO link VALUES (?, ?, ?)", (exporter, run, problem))

    def decide(self, outcomes: Iterable[Outcome], traces: Mapping[bytes, bool]) -> None:
        """Record decided groups, and whether each trace is delivered, in one transaction."""
        with self._change():
            for outcome in outcomes:
                self._db.execute(
                    "INSERT INTO verdict VALUES (?, ?, ?, ?)",
                    (outcome.name, outcome.kept, outcome.step, outcome.size),
                )
                self._db.execute(
                    "INSERT INTO outcome VALUES (?, ?, 1) "
                    "ON CONFLICT (kept, reason) DO UPDATE SET groups = groups + 1",
                    (outcome.kept, outcome.reason),
                )
            self._db.executemany("INSERT OR IGNORE INTO trace VALUES (?, ?)", traces.items())

    def is_kept(self, trace: bytes) -> bool | None:
        """Return whether the spans of a trace are delivered; None while undecided."""
        return self._flag("SELECT kept FROM trace WHERE trace = ?", trace)

    def is_group_kept(self, name: str) -> bool | None:
        """Return whether a group is delivered; None while undecided."""
        return self._flag("SELECT kept FROM verdict WHERE name = ?", name)

    def _flag(self, query: str, key: object) -> bool | None:
        row = self._db.execute(query, (key,)).fetchone()
        return None if row is None else bool(row[0])

    def kept_bytes(self) -> dict[str, int]:
        """Return step → bytes of the groups that are delivered."""
        return dict(self._db.execute("SELECT step, SUM(bytes) FROM verdict WHERE kept GROUP BY step"))
