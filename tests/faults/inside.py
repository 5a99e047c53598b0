"""Change processes that tests start: another clock, deaths.

``site/sitecustomize.py`` calls :func:`arrange`. So recording processes and forwarders run the product's own
code, started by the product's own command.

Variables:
    OTEL_TEST_CLOCK   file with the seconds by which the clock is ahead; its content may change at any time
    OTEL_TEST_BATCH   spans of a batch that the exporter of tables commits
    OTEL_TEST_TABLE   directory in which an object store keeps the table
    OTEL_TEST_DEATHS  directory with a file for each point at which a forwarder dies; the forwarder removes it
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SITE = Path(__file__).parent / "site"


def arrange() -> None:
    """Change this process as the variables say."""
    if clock := os.environ.get("OTEL_TEST_CLOCK"):
        _step_clock(Path(clock))
    if "otel_rollout.forwarder" in sys.orig_argv:
        if spans := os.environ.get("OTEL_TEST_BATCH"):
            _commit_small_batches(int(spans))
        if deaths := os.environ.get("OTEL_TEST_DEATHS"):
            _die_as_told(Path(deaths))


def _step_clock(clock: Path) -> None:
    """Set the time of day, like a change of the clock, but not the monotonic clock."""
    real_time, real_time_ns = time.time, time.time_ns

    def ahead() -> float:
        return float(clock.read_text() or 0)

    time.time = lambda: real_time() + ahead()
    time.time_ns = lambda: real_time_ns() + int(ahead() * 1e9)


DEATHS = (
    "before the request",
    "after the answer",
    "in the cursor's transaction",
    "after the cursor's write",
    "completing a segment",
    "ending trajectories",
    "giving back buffers",
    "archiving a segment",
    "removing a segment",
)
"""Points at which tests kill a forwarder by SIGKILL."""
DEATHS_COMMITTING = (
    "before the batch's note",
    "in the note's transaction",
    "after the batch's note",
    "before the table is begun",
    "after the table is begun",
    "before the commit",
    "writing the rows",
    "after the rows are written",
    "in the table's log",
    "after the commit",
    "before the question",
    "after the question",
)
"""Points at which tests kill a forwarder while it commits a batch to a table in a directory."""
ONCE = frozenset({"before the table is begun", "after the table is begun"})
"""Points that no later forwarder reaches: the table is there."""
DEATHS_DECIDING = ("before the verdict", "in the verdict's transaction", "after the verdict")
"""Points at which tests kill a forwarder while it decides about groups."""


class _Deaths:
    """Kills this process at points for which the directory has a file.

    Args:
        directory: has a file named like each point; the file of a reached point is removed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def die(self, point: str) -> None:
        """Die if the point has a file."""
        try:
            (self._directory / point).unlink()
        except FileNotFoundError:  # the test did not choose the point, or another forwarder died there
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner: Any, name: str, point: str, is_it: Callable[..., bool] = lambda *_: True) -> None:
        """Die before a function is called with arguments that ``is_it`` accepts."""
        function = getattr(owner, name)

        def dying(*arguments: Any, **options: Any) -> Any:
            if is_it(*arguments):
                self.die(point)
            return function(*arguments, **options)

        setattr(owner, name, dying)

    def after(self, owner: Any, name: str, point: str) -> None:
        """Die after a function has returned."""
        function = getattr(owner, name)

        def dying(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            self.die(point)
            return result

        setattr(owner, name, dying)

    def at_statement(self, statement: str) -> None:
        """Die inside a transaction of the ledger."""
        if "INTO step VALUES" in statement:
            self.die("in the cursor's transaction")
        elif "INTO batch VALUES" in statement:
            self.die("in the note's transaction")
        elif "INTO outcome VALUES" in statement:
            self.die("in the verdict's transaction")


def _commit_small_batches(spans: int) -> None:
    from otel_rollout_delta.exporter import DeltaSpanExporter

    begin = DeltaSpanExporter.__init__

    def begin_with_small_batches(self: DeltaSpanExporter, **options: Any) -> None:
        begin(self, **options)
        self.batch = dataclasses.replace(self.batch, spans=spans)

    DeltaSpanExporter.__init__ = begin_with_small_batches  # type: ignore[method-assign]


def _watch(deaths: _Deaths, directory: Path, is_over: threading.Event) -> None:
    """Die when files of a commit appear: rows that are being written, rows, an entry of the log."""

    def found(pattern: str) -> set[str]:
        return {path.name for path in directory.glob(pattern)}

    patterns = {
        "writing the rows": "*.parquet*",
        "after the rows are written": "*.parquet",
        "in the table's log": "_delta_log/*",
    }
    before = {point: found(pattern) for point, pattern in patterns.items()}
    while not is_over.is_set():
        for point, pattern in patterns.items():
            is_begun = before["in the table's log"]  # the first entry of the log begins the table
            if is_begun and found(pattern) - before[point]:
                deaths.die(point)


def _die_committing(deaths: _Deaths) -> None:
    """Die around each step of a commit to a table, and inside it."""
    from otel_rollout.account import ledger
    from otel_rollout.table import store

    append = store.Store.append

    def watched(self: store.Store, *arguments: Any) -> None:
        is_over = threading.Event()
        directory = Path(os.environ.get("OTEL_TEST_TABLE", self.location.uri))
        watch = threading.Thread(target=_watch, args=(deaths, directory, is_over), daemon=True)
        watch.start()
        try:
            append(self, *arguments)
        finally:
            is_over.set()
            watch.join()

    store.Store.append = watched  # type: ignore[method-assign]
    deaths.before(ledger.Ledger, "note_batch", "before the batch's note")
    deaths.after(ledger.Ledger, "note_batch", "after the batch's note")
    deaths.before(store.Store, "_begin", "before the table is begun")
    deaths.after(store.Store, "_begin", "after the table is begun")
    deaths.before(store.Store, "append", "before the commit")
    deaths.after(store.Store, "append", "after the commit")
    deaths.before(store.Store, "committed", "before the question")
    deaths.after(store.Store, "committed", "after the question")


def _die_as_told(directory: Path) -> None:
    from otel_rollout.account import ledger
    from otel_rollout.deliver import batch_sender, compaction, crash_recovery, delivery
    from otel_rollout.spool import segments

    deaths = _Deaths(directory)

    def watch_statements(self: Any, *arguments: Any, born: Any = ledger.Ledger.__init__) -> None:
        born(self, *arguments)
        self._db.set_trace_callback(deaths.at_statement)

    ledger.Ledger.__init__ = watch_statements  # type: ignore[method-assign]
    _die_committing(deaths)
    deaths.before(batch_sender.BatchSender, "_export", "before the request")
    deaths.before(delivery.Delivery, "_advance", "after the answer")
    deaths.after(ledger.Ledger, "advance", "after the cursor's write")
    deaths.before(ledger.Ledger, "decide", "before the verdict")
    deaths.after(ledger.Ledger, "decide", "after the verdict")
    deaths.after(segments, "_end_of_last_line", "completing a segment")  # writes are on disk, the cut is not
    is_new = lambda path, _: path.name.endswith(".new")  # noqa: E731
    deaths.before(crash_recovery.Path, "rename", "ending trajectories", is_new)
    deaths.before(segments, "discard_buffers", "giving back buffers")
    is_archive = lambda path, _: path.parent.name == "archive"  # noqa: E731
    deaths.before(compaction.Path, "replace", "archiving a segment", is_archive)
    deaths.after(compaction, "archive", "removing a segment")
