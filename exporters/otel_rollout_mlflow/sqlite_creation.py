"""Create MLflow's SQLite file so that no process sees it incomplete.

MLflow creates its tables in dozens of migrations. Two processes that migrate one file at once fail, and may
leave an unusable file. So one process creates the file while the others wait.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from otel_rollout.base.waits import wait_until, waits

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine


def ensure_created(engine: Engine) -> None:
    """Create the SQLite file of an engine with MLflow's tables if it is missing.

    If another program, such as MLflow itself, is creating the file, wait.

    Args:
        engine: engine of the database, used for reading only.

    Raises:
        OSError: the file cannot be read, or its directory cannot be created or written to.
    """
    path = Path(engine.url.database or "").absolute()
    check_readable(path)  # fails at once, where MLflow would try for two minutes
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        if not path.exists() and _create(path):
            return
        wait_until(lambda: _is_complete(engine) or not _is_being_created(path), waits().database)


def check_readable(path: Path) -> None:
    """Check that a database is readable or missing, without opening it, which would end SQLite's locks.

    Raises:
        OSError: the path is no file, a link to nothing, or not readable for this user.
    """
    if not os.path.lexists(path):
        return
    number = 0 if os.access(path, os.R_OK, effective_ids=True) else errno.EACCES
    if not stat.S_ISREG(path.stat().st_mode):
        number = errno.EISDIR
    if number:
        raise OSError(number, os.strerror(number), str(path))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a lock on a directory, if its file system has locks."""
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


def _create(path: Path) -> bool:
    """Create a file with MLflow's tables; return False if another program was first."""
    from mlflow.store.db.utils import _initialize_tables
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import URL, create_engine, event

    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.touch()  # fails at once, where MLflow would try for two minutes
    try:
        uri = URL.create("sqlite", database=str(new)).render_as_string()
        unsynchronized = create_engine(uri)  # else SQLite would sync the file after each of 500 statements
        event.listen(unsynchronized, "connect", lambda file, _: file.execute("PRAGMA synchronous=OFF"))
        _initialize_tables(unsynchronized)
        unsynchronized.dispose()
        # The store adds the default experiment, and so syncs the whole file, whose name only we know.
        SqlAlchemyStore(uri, DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine.dispose()
        os.link(new, path)
    except FileExistsError:  # keep the other program's file: it may be in use
        return False
    finally:
        new.unlink(missing_ok=True)
    return True


def _is_complete(engine: Engine) -> bool:
    from alembic.migration import MigrationContext
    from mlflow.store.db.utils import _get_latest_schema_revision
    from sqlalchemy.exc import OperationalError

    try:
        with engine.connect() as connection:
            revision = MigrationContext.configure(connection).get_current_revision()
    except OperationalError:  # locked by the process that creates the tables
        return False
    return bool(revision == _get_latest_schema_revision())


def _is_being_created(path: Path) -> bool:
    changed = []
    for file in (path, path.with_name(path.name + "-journal"), path.with_name(path.name + "-wal")):
        try:
            changed.append(file.stat().st_mtime)
        except FileNotFoundError:
            continue
    return time.time() - max(changed, default=0.0) < waits().database_abandoned
