"""Open the ledger's SQLite file, and replace it if it is removed or damaged."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from otel_rollout.account.ledger_reader import (
    FILE,
    FILE_SUFFIXES,
    VERSION,
    check_files,
    connect,
    read_ledger,
    version_of,
)
from otel_rollout.account.state import state
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.errors import warn_once

_FOREIGN_CONTENT = ("no such", "unsupported file format")
"""Parts of SQLite's errors about a database with tables other than the ledger's."""
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
CREATE TABLE IF NOT EXISTS destination (exporter TEXT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS batch (
    exporter TEXT PRIMARY KEY, writer TEXT NOT NULL, number INTEGER NOT NULL, ends TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS held_score (
    exporter TEXT, segment TEXT, end INTEGER, line BLOB NOT NULL, since REAL NOT NULL,
    PRIMARY KEY (exporter, segment, end)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unresolved_score (
    exporter TEXT, reason TEXT, scores INTEGER NOT NULL, PRIMARY KEY (exporter, reason)) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
COMMIT;
"""
"""The tables. Names stay as in files of older versions; ``left_out`` counts spans sampled out."""


class LedgerFile:
    """An open connection to the ledger of a node directory; one instance per thread.

    Args:
        node_dir: the node directory that the ledger lies in.
        is_ours: returns whether this process is the directory's forwarder; only the forwarder replaces the
            file.
        restore: called with the ledger after its file was replaced, to write back what the caller knows.

    Raises:
        ForeignFileError: one of the ledger's files may belong to another user.
    """

    def __init__(
        self,
        node_dir: Path,
        is_ours: Callable[[], bool] = lambda: False,
        restore: Callable[[Any], None] = lambda ledger: None,
    ) -> None:
        self._path = node_dir / FILE
        self._is_ours = is_ours
        self._restore: Callable[[Any], None] = restore
        self.destinations: dict[str, str] = {}
        """Exporter → where to find its spans; written with the exporter's next batch or failure."""
        self._is_restored = True
        self._db, self._file = self._open()

    def __enter__(self) -> Self:
        """Return the ledger, for a ``with`` block."""
        return self

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the ledger; replace it if the error says that it is damaged."""
        try:
            if isinstance(error, sqlite3.Error):
                self.replace_if_damaged(error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _open(self) -> tuple[sqlite3.Connection, os.stat_result]:
        """Connect to the file, and return the connection and what identifies the file."""
        check_files(self._path.parent)
        db = connect(self._path)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            # Commits survive the process's death. The machine's death may lose the spool too.
            db.execute("PRAGMA synchronous=OFF")
            if version_of(db) == 0:
                db.executescript(_SCHEMA)
            return db, os.stat(self._path)
        except BaseException:
            db.close()
            raise

    def keep(self) -> None:
        """Restore the file with its content if it was removed; replace it if it was cut."""
        with state.ledger_lock:
            if self._is_ours() and self._is_replaced():
                removed = self._db
                self._db, self._file = self._open()
                removed.close()
                self._is_restored = False
            if not self._is_restored:
                self._is_restored = True  # set first: restore() calls methods that call keep()
                try:
                    self._restore(self)
                except BaseException:
                    self._is_restored = False
                    raise

    def replace_if_damaged(self, error: sqlite3.Error) -> None:
        """Replace the file by an empty one if ``error`` says that it is damaged.

        The connection stays open on the damaged file; :meth:`keep` opens the new one.
        """
        is_damaged = type(error) is sqlite3.DatabaseError or any(s in str(error) for s in _FOREIGN_CONTENT)
        with state.ledger_lock:
            if is_damaged and self._is_ours() and _is_same_file(self._path, self._file):
                _replace(self._path.parent, f"{self._path} is damaged: {error}")

    def _is_replaced(self) -> bool:
        """Return whether the path has another file now; make one if it has none."""
        if _is_same_file(self._path, self._file):
            if self._path.stat().st_size >= self._file.st_size:  # SQLite never makes the file smaller
                return False
            _replace(self._path.parent, f"another program has cut {self._path}")
            return True
        by_another_thread = state.replaced_ledgers.get(self._path)
        return bool(by_another_thread and _is_same_file(self._path, by_another_thread)) or self._write_again()

    def _write_again(self) -> bool:
        """Write the removed file again, from the connection that is still open.

        Returns:
            Whether the file was written; if not, the next change tries again.
        """
        fresh = self._path.with_name("put-back." + FILE)
        try:
            fresh.unlink(missing_ok=True)
            with closing(connect(fresh)) as db:
                self._db.backup(db)
            for suffix in FILE_SUFFIXES:  # SQLite would read the old file's journal into the new file
                self._path.with_name(FILE + suffix).unlink(missing_ok=True)
            fresh.rename(self._path)
            state.replaced_ledgers[self._path] = os.stat(self._path)
        except (OSError, sqlite3.Error) as error:
            removed = f"another program removed {self._path}, and it cannot be made again: {error}"
            warn_once(removed, logger=logger)
            return False
        logger.warning("another program removed %s; it is made again, with all that it held", self._path)
        return True

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Run a transaction on the file that readers see."""
        with state.ledger_lock:
            self.keep()
            with self._db:
                yield


def set_aside_unreadable(node_dir: Path) -> None:
    """Rename a ledger that cannot be read, so that delivery starts with an empty one.

    Spans that are still in segments are then delivered again. Only the holder of the forwarder's lock may
    call this, before delivery begins.
    """
    problem = read_ledger(node_dir).problem
    if problem is not None:
        name = _set_aside(node_dir)
        logger.error("%s. It is renamed to %s; spans still in segments are delivered again", problem, name)


def replace_unreadable(node_dir: Path) -> None:
    """Put an empty ledger in the place of one that is unreadable, while deliveries go on.

    Deliveries write their cursors and counts into the new file, and deliver nothing twice. The holder of the
    forwarder's lock calls this regularly, because an open connection that reads from memory may not notice
    damage.
    """
    with state.ledger_lock:
        try:
            problem = read_ledger(node_dir).problem
            if problem is not None:
                _replace(node_dir, problem)
        except (OSError, sqlite3.Error) as error:  # tried again at the next call
            logger.warning("%s cannot be checked for damage: %s", node_dir / FILE, error)


def _replace(node_dir: Path, problem: str) -> None:
    """Replace a ledger by an empty one, which :meth:`LedgerFile.keep` opens."""
    name = _set_aside(node_dir)
    with closing(LedgerFile(node_dir)):
        state.replaced_ledgers[node_dir / FILE] = os.stat(node_dir / FILE)
    logger.error("%s. It is renamed to %s, and made again from what this process knows", problem, name)


def _set_aside(node_dir: Path) -> str:
    """Rename the ledger, and return its new name."""
    name = f"unreadable-{time.time_ns()}.{FILE}"
    for suffix in FILE_SUFFIXES:
        path = node_dir / (FILE + suffix)
        if os.path.lexists(path):
            path.rename(node_dir / (name + suffix))
    return name


def _is_same_file(path: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), file)
    except FileNotFoundError:
        return False
