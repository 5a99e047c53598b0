"""What was delivered: one cursor per exporter and segment, and counts per step, in a small SQLite file.

Where groups are delivered by their outcome, which ones, and so which traces.

A cursor moves in the same transaction as the counts, after the target has answered: a forwarder killed in
between sends the batch again, and no count is ever wrong about what the cursor says. The file is written by
the forwarder alone and read by anybody.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from otel_rollout._state import process
from otel_rollout.account.report import DeliveryCount
from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout.otlp.scan import StepKey
from otel_rollout.spool.private_files import ForeignFileError, check_absent_or_own

FILE = "ledger.sqlite"
_SUFFIXES = ("-wal", "-shm", "-journal", "")
"""Of the files that SQLite opens, or makes, beside the ledger, and of the ledger itself."""
_BUSY_TIMEOUT = 10.0
_logger = logging.getLogger("otel_rollout.forwarder")
_PASSING = ("locked", "busy", "disk I/O error", "unable to open", "disk is full")
"""What SQLite says when it is not the file's fault."""
_OF_ANOTHER_FORMAT = ("no such", "unsupported file format")
"""What SQLite says of a database that has another one's content."""
_VERSION = 1
_SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS cursor (
    exporter TEXT, segment TEXT, position INTEGER NOT NULL, PRIMARY KEY (exporter, segment)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS step (
    exporter TEXT, step TEXT, validate INTEGER, delivered INTEGER NOT NULL, rejected INTEGER NOT NULL,
    left_out INTEGER NOT NULL, PRIMARY KEY (exporter, step, validate)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempt (
    exporter TEXT PRIMARY KEY, failed INTEGER NOT NULL, kind TEXT, message TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS link (
    exporter TEXT PRIMARY KEY, run TEXT NOT NULL, problem TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS trace (trace BLOB PRIMARY KEY, kept INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verdict (
    name TEXT PRIMARY KEY, kept INTEGER NOT NULL, step TEXT NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outcome (
    kept INTEGER, reason TEXT, groups INTEGER NOT NULL, PRIMARY KEY (kept, reason)) WITHOUT ROWID;
PRAGMA user_version = {_VERSION};
COMMIT;
"""


_DESTINATION = "CREATE TABLE IF NOT EXISTS destination (exporter TEXT PRIMARY KEY, text TEXT NOT NULL)"
"""Apart from the schema: ledgers of version 1 may lack it."""


@dataclass
class Tally:
    """Spans of one step that an exporter is done with."""

    delivered: int = 0
    rejected: int = 0
    left_out: int = 0

    @property
    def done(self) -> int:
        """All of them."""
        return self.delivered + self.rejected + self.left_out

    def __add__(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(
            self.delivered + other.delivered,
            self.rejected + other.rejected,
            self.left_out + other.left_out,
        )


class Outcome(NamedTuple):
    """A group that is decided.

    Attributes:
        name: the group's.
        step: name of its step.
        size: bytes of its spans.
        kept: whether it is delivered.
        reason: why, or why not.
    """

    name: str
    step: str
    size: int
    kept: bool
    reason: str


class Ledger:
    """The forwarder's end. One instance per thread.

    Args:
        node_dir: the node directory the ledger lies in.
        is_ours: whether this process forwards the directory, and puts the ledger back if it is removed.
        restore: writes what its caller knows into the ledger, after another file has taken its place.

    Raises:
        ForeignFileError: when one of its files may be somebody else's.
    """

    def __init__(
        self,
        node_dir: Path,
        is_ours: Callable[[], bool] = lambda: False,
        restore: Callable[[Ledger], None] = lambda ledger: None,
    ) -> None:
        self._path = node_dir / FILE
        self._is_ours = is_ours
        self._restore = restore
        self._is_restored = True
        self._is_refused = False
        self._open()
        self.destinations: dict[str, str] = {}
        """Exporter → where people find what it delivers; noted with what is noted next of the exporter."""

    def __enter__(self) -> Ledger:
        """Use the ledger."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Close the ledger; begin it anew if it turned out to be damaged."""
        try:
            if isinstance(error, sqlite3.Error):
                self.replace_if_damaged(error)
        finally:
            self.close()

    def _open(self) -> None:
        _check_files(self._path.parent)
        db = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            # The death of the process loses nothing; the death of the machine would take the spool as well.
            db.execute("PRAGMA synchronous=OFF")
            if _version_of(db) == 0:
                db.executescript(_SCHEMA)
            db.execute(_DESTINATION)
            self._file = os.stat(self._path)
        except BaseException:
            db.close()
            raise
        self._db = db

    def keep(self) -> None:
        """Put the ledger back, with all it holds, if somebody has removed it; begin it anew if it was cut."""
        with process.ledger_lock:
            if self._is_ours() and self._is_replaced():
                gone = self._db
                self._open()
                gone.close()
                self._is_restored = False
            if not self._is_restored:
                self._is_restored = True  # what is restored is written by methods that come here first
                try:
                    self._restore(self)
                except BaseException:
                    self._is_restored = False
                    raise

    def replace_if_damaged(self, error: sqlite3.Error) -> None:
        """Begin the ledger anew if that is what an error calls for; :meth:`keep` then opens the new one."""
        is_damaged = type(error) is sqlite3.DatabaseError or any(s in str(error) for s in _OF_ANOTHER_FORMAT)
        with process.ledger_lock:
            if is_damaged and self._is_ours() and _is_at(self._path, self._file):
                _begin_anew(self._path.parent, f"{self._path} is damaged: {error}")

    def _is_replaced(self) -> bool:
        """Whether the file is another one than is open here; one that is missing or was cut is replaced."""
        if _is_at(self._path, self._file):
            if self._path.stat().st_size >= self._file.st_size:  # SQLite never makes it smaller
                return False
            _begin_anew(self._path.parent, f"somebody has cut {self._path}")
            return True
        by_another_thread = process.replaced_ledgers.get(self._path)
        return bool(by_another_thread and _is_at(self._path, by_another_thread)) or self._put_back()

    def _put_back(self) -> bool:
        """Make the file again; False when that is not possible at present: the removed one is still open."""
        fresh = self._path.with_name("put-back." + FILE)
        try:
            fresh.unlink(missing_ok=True)
            with closing(sqlite3.connect(fresh)) as db:
                self._db.backup(db)
            for suffix in _SUFFIXES:  # what is left of the old one would be read into the new one
                self._path.with_name(FILE + suffix).unlink(missing_ok=True)
            fresh.rename(self._path)
            process.replaced_ledgers[self._path] = os.stat(self._path)
        except (OSError, sqlite3.Error) as error:
            if not self._is_refused:
                _logger.error("somebody removed %s, and it cannot be made again: %s", self._path, error)
            self._is_refused = True
            return False
        self._is_refused = False
        _logger.warning("somebody removed %s; it is made again, with all that it held", self._path)
        return True

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Change the ledger, all at once, where it is read."""
        with process.ledger_lock:
            self.keep()
            with self._db:
                yield

    def cursors(self, exporter: str) -> dict[str, int]:
        """Bytes of each segment that ``exporter`` is done with."""
        rows = self._db.execute("SELECT segment, position FROM cursor WHERE exporter = ?", (exporter,))
        return dict(rows.fetchall())

    def tallies(self, exporter: str) -> dict[StepKey, Tally]:
        """Spans of each step that ``exporter`` is done with."""
        rows = self._db.execute(
            "SELECT step, validate, delivered, rejected, left_out FROM step WHERE exporter = ?", (exporter,)
        )
        return {StepKey(step, bool(validate)): Tally(*counts) for step, validate, *counts in rows}

    def advance(self, exporter: str, positions: Mapping[str, int], tallies: Mapping[StepKey, Tally]) -> None:
        """Note that ``exporter`` is done with the segments up to ``positions``; it is no longer failing."""
        with self._change():
            self._db.executemany(
                "INSERT INTO cursor VALUES (?, ?, ?) "
                "ON CONFLICT (exporter, segment) DO UPDATE SET position = excluded.position",
                [(exporter, segment, position) for segment, position in positions.items()],
            )
            self._db.executemany(
                "INSERT INTO step VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (exporter, step, validate) DO UPDATE SET "
                "delivered = delivered + excluded.delivered, rejected = rejected + excluded.rejected, "
                "left_out = left_out + excluded.left_out",
                [
                    (exporter, key.step, key.validate, tally.delivered, tally.rejected, tally.left_out)
                    for key, tally in tallies.items()
                ],
            )
            self._db.execute("UPDATE attempt SET kind = NULL WHERE exporter = ?", (exporter,))
            self._note_destination(exporter)

    def note_failure(self, exporter: str, failure: ExportFailure, is_retry: bool = True) -> None:
        """Note that ``exporter`` cannot deliver at present, and why; ``is_retry``: a request is repeated."""
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

    def forget_failures(self) -> None:
        """Forget why earlier forwarders could not deliver: another one may have what they lacked."""
        with self._change():
            self._db.execute("UPDATE attempt SET kind = NULL")

    def note_link(self, exporter: str, run: str, problem: str | None) -> None:
        """Note that what ``exporter`` delivers is linked to a run of its tracker, or why it is not."""
        with self._change():
            self._db.execute("INSERT OR REPLACE INTO link VALUES (?, ?, ?)", (exporter, run, problem))

    def decide(self, outcomes: Iterable[Outcome], traces: Mapping[bytes, bool]) -> None:
        """Note, all at once, groups that are decided, and of which traces spans are delivered."""
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
        """Whether the spans of a trace are delivered; None while that is not decided."""
        return self._flag("SELECT kept FROM trace WHERE trace = ?", trace)

    def is_group_kept(self, name: str) -> bool | None:
        """Whether a group is delivered; None while that is not decided."""
        return self._flag("SELECT kept FROM verdict WHERE name = ?", name)

    def _flag(self, query: str, key: object) -> bool | None:
        row = self._db.execute(query, (key,)).fetchone()
        return None if row is None else bool(row[0])

    def kept_bytes(self) -> dict[str, int]:
        """Step → bytes of its groups that are delivered."""
        return dict(self._db.execute("SELECT step, SUM(bytes) FROM verdict WHERE kept GROUP BY step"))

    def close(self) -> None:
        """Close the file."""
        self._db.close()


@dataclass(frozen=True)
class LedgerState:
    """What a ledger says.

    Attributes:
        cursors: exporter → segment → bytes done.
        steps: exporter → step → spans done.
        failures: exporter → why it cannot deliver at present.
        retries: exporter → attempts that had to be repeated.
        links: exporter → the tracker's run that its spans are linked to, and why they are not, if so.
        groups: whether delivered, and why → so many groups, where their outcome decides.
        problem: why it says nothing of all this, if it cannot be read.
        destinations: exporter → where people find what it delivers.
    """

    cursors: dict[str, dict[str, int]]
    steps: dict[str, dict[StepKey, Tally]]
    failures: dict[str, ExportFailure]
    retries: dict[str, int]
    links: dict[str, tuple[str, str | None]]
    groups: dict[tuple[bool, str], int]
    problem: str | None = None
    destinations: dict[str, str] = field(default_factory=dict)

    def count(self, exporter: str) -> DeliveryCount:
        """The counts of an exporter."""
        steps = self.steps.get(exporter, {}).values()
        return DeliveryCount(
            delivered=sum(tally.delivered for tally in steps),
            rejected=sum(tally.rejected for tally in steps),
            left_out=sum(tally.left_out for tally in steps),
            retried=self.retries.get(exporter, 0),
        )

    def done(self, exporter: str) -> int:
        """Spans that an exporter is done with."""
        return sum(tally.done for tally in self.steps.get(exporter, {}).values())


def read_ledger(node_dir: Path) -> LedgerState:
    """Read a ledger from outside; an empty state when there is none, or the forwarder is just creating it."""
    state = LedgerState({}, {}, {}, {}, {}, {})
    path = node_dir / FILE
    try:
        _check_files(node_dir)
    except FileNotFoundError:  # the directory is gone
        return state
    except ForeignFileError as error:
        return dataclasses.replace(state, problem=f"the ledger cannot be read: {error}")
    if path.exists():
        try:
            _read(path, state)
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            if not path.exists():
                return state
            if isinstance(error, sqlite3.OperationalError) and any(s in str(error) for s in _PASSING):
                raise
            return LedgerState({}, {}, {}, {}, {}, {}, f"{path} cannot be read: {error}")
    return state


def set_aside_unreadable(node_dir: Path) -> None:
    """Give a ledger that cannot be read another name, so that delivery goes on with a new one.

    What was delivered is not known then, and what lies in segments is delivered again: rather twice than
    never. To be called by the holder of the forwarder's lock, before it delivers.
    """
    problem = read_ledger(node_dir).problem
    if problem is not None:
        name = _set_aside(node_dir)
        _logger.error("%s. It is kept as %s; what still lies in segments is delivered again", problem, name)


def replace_unreadable(node_dir: Path) -> None:
    """Begin a ledger anew that nobody can read any more, while deliveries go on.

    They write what they know into the new one, and deliver nothing twice. To be called by the holder of the
    forwarder's lock from time to time: a connection that is open may not notice, for what it has in memory.
    """
    with process.ledger_lock:
        try:
            problem = read_ledger(node_dir).problem
            if problem is not None:
                _begin_anew(node_dir, problem)
        except (OSError, sqlite3.Error) as error:  # it is tried again
            _logger.warning("%s cannot be looked at: %s", node_dir / FILE, error)


def _begin_anew(node_dir: Path, problem: str) -> None:
    """Replace a damaged ledger by an empty one; deliveries learn of it from :meth:`Ledger.keep`."""
    name = _set_aside(node_dir)
    with closing(Ledger(node_dir)):
        process.replaced_ledgers[node_dir / FILE] = os.stat(node_dir / FILE)
    _logger.error("%s. It is kept as %s, and begun anew with what this process knows", problem, name)


def _set_aside(node_dir: Path) -> str:
    """Give the ledger another name, and return that."""
    name = f"unreadable-{time.time_ns()}.{FILE}"
    for suffix in _SUFFIXES:
        path = node_dir / (FILE + suffix)
        if os.path.lexists(path):
            path.rename(node_dir / (name + suffix))
    return name


def _is_at(path: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), file)
    except FileNotFoundError:
        return False


def _check_files(node_dir: Path) -> None:
    """Check what SQLite is going to open by its path: it follows links."""
    for suffix in _SUFFIXES:
        check_absent_or_own(node_dir / (FILE + suffix))


def _read(path: Path, state: LedgerState) -> None:
    uri = path.absolute().as_uri() + "?mode=rw"  # somebody may remove it: a reader must not make an empty one
    with closing(sqlite3.connect(uri, timeout=_BUSY_TIMEOUT, uri=True)) as db:
        db.execute("BEGIN")  # all of it at one moment
        if db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:  # just being created
            return
        if (version := _version_of(db)) != _VERSION:
            raise sqlite3.DatabaseError(f"it is of version {version}, and this software reads {_VERSION}")
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
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'destination'").fetchone():
            for exporter, text in db.execute("SELECT exporter, text FROM destination"):
                state.destinations[str(exporter)] = str(text)
        for kept, reason, groups in db.execute("SELECT * FROM outcome"):
            state.groups[bool(kept), reason] = int(groups)


def _version_of(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)
