"""A new SQLite file for MLflow: made by one process while others wait, and never seen half-made.

MLflow creates its tables in dozens of migrations. Two processes that do so to one file at once fail, and may
leave a file that nobody can use.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Engine

_AT_WORK: Final = 10.0
"""Seconds since the last change after which nobody is taken to be making the tables any more."""
_LONGEST_WAIT: Final = 60.0
_POLL_INTERVAL: Final = 0.2


def ensure_made(engine: Engine) -> None:
    """Make the SQLite file of an engine with MLflow's tables, unless it is there.

    Where another program is making it, one of MLflow's own say, wait until it has.

    Args:
        engine: of the database; used to look, not to write.

    Raises:
        OSError: its directory cannot be made or written to.
    """
    path = Path(engine.url.database or "").absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(path.parent):
        if not path.exists() and _put_in_place(path):
            return
        deadline = time.monotonic() + _LONGEST_WAIT
        while not _is_made(engine) and _is_worked_on(path) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Hold a lock that leaves no file behind; where there is none to be had, what follows is safe without."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):  # NFS, say
                raise
        yield
    finally:
        os.close(descriptor)


def _put_in_place(path: Path) -> bool:
    """Make a new file with MLflow's tables; False if another program has begun one meanwhile."""
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import URL

    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.touch()  # MLflow would try for two minutes where no file can be made
    try:
        uri = URL.create("sqlite", database=str(new)).render_as_string()
        with _synchronized_once(new):
            store = SqlAlchemyStore(uri, DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)
            store.engine.dispose()
        os.link(new, path)
    except FileExistsError:  # which perhaps already uses it
        return False
    finally:
        new.unlink(missing_ok=True)
    return True


@contextmanager
def _synchronized_once(path: Path) -> Iterator[None]:
    """Have SQLite write a file to disk once, at the end, rather than after each of 500 statements.

    The file has no name that anybody knows, so nobody sees what a power cut would leave of it.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def without_sync(connection: Any, record: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):  # of another engine of this program
            return
        _, _, file = connection.execute("PRAGMA database_list").fetchone()
        if Path(file).name == path.name:
            connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", without_sync)
    try:
        yield
    finally:
        event.remove(Engine, "connect", without_sync)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_made(engine: Engine) -> bool:
    from alembic.migration import MigrationContext
    from mlflow.store.db.utils import _get_latest_schema_revision
    from sqlalchemy.exc import OperationalError

    try:
        with engine.connect() as connection:
            revision = MigrationContext.configure(connection).get_current_revision()
    except OperationalError:  # locked, by whoever makes the tables
        return False
    return bool(revision == _get_latest_schema_revision())


def _is_worked_on(path: Path) -> bool:
    changed = []
    for file in (path, path.with_name(path.name + "-journal"), path.with_name(path.name + "-wal")):
        try:
            changed.append(file.stat().st_mtime)
        except FileNotFoundError:
            continue
    return time.time() - max(changed, default=0.0) < _AT_WORK
