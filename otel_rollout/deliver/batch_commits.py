"""Commit numbered batches of lines to an exporter whose target stores each once.

The ledger has a batch before it is committed: its number, and the place of its lines in the segments. A
forwarder that is killed leaves the batch in the ledger. Its successor asks the target whether the batch is
stored, and else commits exactly these lines with the same number. If the ledger is lost, the next batches
come from a new writer, and spans may be stored twice. Readers count a span id once.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from otel_rollout.account.ledger import NumberedBatch
from otel_rollout.deliver.batch_sender import BatchSender, Sending
from otel_rollout.deliver.lines import Line
from otel_rollout.exporting.api import (
    BatchLimits,
    CommitsBatches,
    ExportFailure,
    FailureKind,
    UndeliveredError,
)
from otel_rollout.spool import segments
from otel_rollout.spool.waiting import WaitingPrograms

_WRITER_BYTES = 16
"""Bytes of a writer's random id."""
_MAX_STRETCH = 1.25
"""Maximum factor by which a batch waits longer than its limit, so that nodes do not commit in step."""


class BatchCommits(BatchSender):
    """Sends lines in numbered batches, each of which the target stores once.

    Args:
        sending: what every sender needs.
        commits: the exporter, which commits batches.
        note: records a batch in the ledger, before it is committed.
        clock: decides when waiting lines are committed; the caller asks it.

    Attributes:
        clock: as given.
        batch: the newest batch. Its ``ends`` are set from before its commit until :meth:`end`.
    """

    may_halve = False

    def __init__(
        self,
        sending: Sending,
        commits: CommitsBatches,
        note: Callable[[NumberedBatch], None],
        clock: CommitClock,
    ) -> None:
        super().__init__(sending)
        self.batch = NumberedBatch(secrets.token_hex(_WRITER_BYTES))
        self.clock = clock
        self._commits = commits
        self._note = note

    def end(self) -> None:
        """Regard the newest batch as done: committed, or not stored and given up."""
        self.batch = replace(self.batch, ends=None)

    def _export(self, lines: Sequence[Line]) -> tuple[ExportFailure | None, dict[Line, str]]:
        """Commit lines as a new batch, or as the unfinished batch unless the target has stored it."""
        sent, unreadable = self._to_export(lines)
        if not sent:
            return None, unreadable
        if self.batch.ends is None:
            self._begin(lines)
        else:
            is_stored, failure = self._is_stored()
            if failure is not None:
                return failure, unreadable
            if is_stored:
                for _ in self._spans(sent, unreadable):
                    pass
                return None, unreadable
        failure = self._result_of(
            lambda spans: self._commits.commit(spans, self.batch.writer, self.batch.number),
            self._spans(sent, unreadable),
        )
        if failure is not None and failure.kind is FailureKind.REJECTED:
            self.end()  # the target stores a batch as a whole: nothing of this one
        return failure, unreadable

    def _spans(self, lines: Sequence[Line], unreadable: dict[Line, str]) -> Iterator[Any]:
        """Yield the spans of lines, one line at a time; then free the line's spans."""
        for line in lines:
            yield from super()._spans([line], unreadable)
            line.forget()

    def _begin(self, lines: Sequence[Line]) -> None:
        ends = {line.segment: line.end for line in lines}
        begun = replace(self.batch, number=self.batch.number + 1, ends=ends)
        self._note(begun)
        self.batch = begun

    def _is_stored(self) -> tuple[bool, ExportFailure | None]:
        """Ask the target whether it has the unfinished batch."""
        try:
            number = self._commits.committed(self.batch.writer)
        except UndeliveredError as error:
            return False, error.failure
        except Exception as error:  # noqa: BLE001 - a third-party exporter may raise anything
            return False, ExportFailure(FailureKind.UNAVAILABLE, f"{type(error).__name__}: {error}")
        return number is not None and number >= self.batch.number, None


class CommitClock:
    """Decides when waiting lines are committed.

    Args:
        node_dir: the node directory of the lines.
        limits: when lines are committed while writers live and nobody waits.

    Attributes:
        limits: as given.
    """

    def __init__(self, node_dir: Path, limits: BatchLimits) -> None:
        self._node_dir = node_dir
        self.limits = limits
        self._waiting_programs = WaitingPrograms(node_dir)
        self._due_at: float | None = None
        self._left = 0

    def is_due(self, waiting: int) -> bool:
        """Return whether to commit now; ``waiting`` is the number of undelivered bytes."""
        if not waiting:
            self._due_at = None
            return False
        now = time.monotonic()
        if self._due_at is None:
            self._due_at = now + self.limits.seconds * random.uniform(1, _MAX_STRETCH)  # noqa: S311
        return (
            now >= self._due_at
            or waiting - self._left >= self.limits.bytes
            or self._waiting_programs.is_any()
            or not segments.living_writers(self._node_dir)
        )

    def restart(self, left: int) -> None:
        """Wait for further lines; the last batch did not take ``left`` bytes."""
        self._due_at = None
        self._left = left if left < self.limits.bytes else 0
