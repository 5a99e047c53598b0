"""Read a ledger from outside the forwarder."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from otel_rollout.account.report import ExporterCount, totals
from otel_rollout.base.waits import waits
from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout.otlp.scan import StepKey, step_of
from otel_rollout.spool.private_files import ForeignFileError, check_absent_or_own

FILE = "ledger.sqlite"
"""Name of the ledger in a node directory."""
FILE_SUFFIXES = ("-wal", "-shm", "-journal", "")
"""Suffixes of the ledger's file and of the files that SQLite makes beside it."""
VERSION = 1
"""Version of the tables, kept as SQLite's ``user_version``."""
_UNCHANGED_READS = 3
"""Maximum attempts to read a ledger that has no log. A forwarder may start meanwhile."""
_TEMPORARY_ERRORS = ("locked", "busy", "disk I/O error", "unable to open", "disk is full")
"""Parts of SQLite error messages that do not mean a damaged file."""


@dataclass
class Tally:
    """Spans of one step that an exporter is done with."""

    delivered: int = 0
    rejected: int = 0
    sampled_out: int = 0

    @property
    def done(self) -> int:
        """Total number of these spans."""
        return self.delivered + self.rejected + self.sampled_out

    def __add__(self, other: Tally) -> Tally:
        """Add up two tallies."""
        return Tally(**totals([self, other]))


@dataclass(frozen=True)
class LedgerState:
    """The content of a ledger.

    Attributes:
        cursors: exporter → segment → bytes that the exporter is done with.
        steps: exporter → step → spans that the exporter is done with.
        failures: exporter → its present failure.
        retries: exporter → number of batches sent again.
        links: exporter → the tracker's run, and why traces are not linked to the run, or None.
        groups: (whether delivered, reason) → number of groups that tail sampling has decided so.
        problem: why the ledger cannot be read, or None.
        destinations: exporter → where to find its spans.
        held: exporter → steps of the scores by identity that wait for their trajectories.
        unresolved: exporter → reason → scores by identity that belong to no trajectory.
    """

    cursors: dict[str, dict[str, int]] = field(default_factory=dict)
    steps: dict[str, dict[StepKey, Tally]] = field(default_factory=dict)
    failures: dict[str, ExportFailure] = field(default_factory=dict)
    retries: dict[str, int] = field(default_factory=dict)
    links: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    groups: dict[tuple[bool, str], int] = field(default_factory=dict)
    problem: str | None = None
    destinations: dict[str, str] = field(default_factory=dict)
    held: dict[str, list[StepKey]] = field(default_factory=dict)
    unresolved: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, exporter: str, pending: int = 0) -> ExporterCount:
        """Return the counts of an exporter.

        Args:
            exporter: name of the exporter.
            pending: spans on disk that are still to be delivered, which the ledger does not know.
        """
        failure = self.failures.get(exporter)
        _, not_linked = self.links.get(exporter, ("", None))
        return ExporterCount(
            **vars(self.total(exporter)),
            pending=pending,
            retried=self.retries.get(exporter, 0),
            problem=self.problem or (failure.message if failure else not_linked),
            is_refused=self.is_refused(exporter),
            destination=self.destinations.get(exporter, ""),
            unresolved_scores=self.unresolved.get(exporter, {}),
        )

    def is_refused(self, exporter: str) -> bool:
        """Return whether delivery by an exporter stays stopped until a person corrects the problem."""
        failure = self.failures.get(exporter)
        return failure is not None and failure.kind is FailureKind.REFUSED

    def total(self, exporter: str) -> Tally:
        """Return the spans that an exporter is done with."""
        return Tally(**totals([Tally(), *self.steps.get(exporter, {}).values()]))


def read_ledger(
    node_dir: Path, busy_timeout: float | None = None, writes_nothing: bool = False
) -> LedgerState:
    """Read the ledger of a node directory; the state is empty while there is none.

    Args:
        node_dir: the node directory.
        busy_timeout: seconds that SQLite waits for another process's lock; None for ``Waits.ledger``.
        writes_nothing: whether the ledger and its log must stay as they are.

    Raises:
        sqlite3.OperationalError: the file cannot be read at present, for example because it is locked.
    """
    path = node_dir / FILE
    read = _read_unchanged if writes_nothing else _read
    try:
        check_files(node_dir)
    except FileNotFoundError:  # the directory was removed
        return LedgerState()
    except ForeignFileError as error:
        return LedgerState(problem=f"the ledger cannot be read: {error}")
    if path.exists():
        try:
            return read(path, busy_timeout)
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            if not path.exists():
                return LedgerState()
            if isinstance(error, sqlite3.OperationalError) and any(
                s in str(error) for s in _TEMPORARY_ERRORS
            ):
                raise
            return LedgerState(problem=f"{path} cannot be read: {error}")
    return LedgerState()


def check_files(node_dir: Path) -> None:
    """Check that the ledger's files are this user's: SQLite would follow links.

    Raises:
        ForeignFileError: a file may belong to another user.
    """
    for suffix in FILE_SUFFIXES:
        check_absent_or_own(node_dir / (FILE + suffix))


def connect(database: str | Path, uri: bool = False, busy_timeout: float | None = None) -> sqlite3.Connection:
    """Open a ledger's file; ``uri`` says that ``database`` is a URI."""
    # Not sqlite3.connect, which tracing libraries replace: these queries are none of the application's.
    timeout = waits().ledger if busy_timeout is None else busy_timeout
    return sqlite3.Connection(database, timeout=timeout, uri=uri)


def version_of(db: sqlite3.Connection) -> int:
    """Return the version of a ledger's tables; 0 for a new file."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def _read_unchanged(path: Path, busy_timeout: float | None) -> LedgerState:
    """Read a ledger, and leave its content as it is.

    A connection that may write copies the log into the file, and removes the log. A read-only connection uses
    an existing log. Without a log it makes an empty one, unless it is told that nobody writes.
    """
    log = path.with_name(FILE + "-wal")
    for _ in range(_UNCHANGED_READS):
        before = _sizes_and_times(path, log)
        if log.exists() and log.stat().st_size:
            return _read(path, busy_timeout, "mode=ro")
        try:
            state = _read(path, busy_timeout, "mode=ro&immutable=1")
        except sqlite3.DatabaseError:
            if _sizes_and_times(path, log) == before:
                raise
        else:
            if _sizes_and_times(path, log) == before:
                return state
    return _read(path, busy_timeout, "mode=ro")


def _sizes_and_times(*paths: Path) -> list[tuple[int, int, int] | None]:
    """Return inode, size and time of change of each file; None for a missing file."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:  # no check beforehand whether it exists: it may vanish in between
            state = path.stat()
            found.append((state.st_ino, state.st_size, state.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return found


def _read(path: Path, busy_timeout: float | None, mode: str = "mode=rw") -> LedgerState:
    state = LedgerState()
    uri = f"{path.absolute().as_uri()}?{mode}"  # never creates a file, in case this one is being removed
    with closing(connect(uri, uri=True, busy_timeout=busy_timeout)) as db:
        db.execute("BEGIN")  # one transaction reads all tables in one state
        if db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:  # tables are being created
            return state
        if (version := version_of(db)) != VERSION:
            raise sqlite3.DatabaseError(f"it is of version {version}, and this software reads {VERSION}")
        for exporter, segment, position in db.execute("SELECT * FROM cursor"):
            state.cursors.setdefault(exporter, {})[segment] = int(position)
        for exporter, step, validate, *counts in db.execute("SELECT * FROM step"):
            tally = Tally(*map(int, counts))
            state.steps.setdefault(exporter, {})[StepKey(step, bool(validate))] = tally
        for exporter, run, problem in db.execute("SELECT * FROM link"):
            state.links[exporter] = (run, problem)
        for exporter, failed, kind, message in db.execute("SELECT * FROM attempt"):
            state.retries[exporter] = int(failed)
            if kind is not None:
                state.failures[exporter] = ExportFailure(FailureKind(kind), message)
        for exporter, line in db.execute("SELECT exporter, line FROM held_score"):
            state.held.setdefault(exporter, []).append(step_of(line))
        for exporter, reason, number in db.execute("SELECT * FROM unresolved_score"):
            state.unresolved.setdefault(exporter, {})[reason] = int(number)
        for exporter, text in db.execute("SELECT exporter, text FROM destination"):
            state.destinations[str(exporter)] = str(text)
        for kept, reason, groups in db.execute("SELECT * FROM outcome"):
            state.groups[bool(kept), reason] = int(groups)
    return state
