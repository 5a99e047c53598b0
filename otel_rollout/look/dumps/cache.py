"""Keep tables of opened dumps in a private directory, so that an unchanged dump opens at once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from otel_rollout.base.version import VERSION
from otel_rollout.exporting.batching import batches
from otel_rollout.look.dumps.opening import Dumps
from otel_rollout.look.errors import ViewerError
from otel_rollout.otlp.span import Span
from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of, rows_of
from otel_rollout.table.store import Store

MAX_BYTES: Final = 20 << 30
"""Maximum bytes of all kept tables; the table that was opened longest ago is removed first."""
_PLACE: Final = "dumps"
"""Subdirectory of the tables in the given directory, which may hold other files of its owner."""
_REMARKS: Final = "remarks.json"
_PACKAGE: Final = Path(__file__).parents[2]
_ROOMS: Final = ("base/*.py", "otlp/*.py", "table/*.py", "look/dumps/**/*.py")
"""Our modules that make rows from a file."""
_PART: Final = "part-"
_COMMIT_CHARS, _COMMIT_TRAJECTORIES = 32 << 20, 5_000
"""Maximum characters and trajectories of a commit."""


def default_directory() -> Path:
    """Return our directory among the user's caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "otel-rollout"


def table_of(dumps: Dumps, directory: Path) -> tuple[Path, list[str]]:
    """Return the table of a dump, made if it is not kept already, and remarks for a person.

    Args:
        dumps: the opened files.
        directory: where the subdirectory for tables is, or is made.

    Raises:
        ViewerError: the dump holds no trajectory, or the directory cannot be used.
    """
    directory /= _PLACE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        kept = directory / _key_of(dumps)
        if (kept / _REMARKS).is_file():
            os.utime(kept)
            remarks: list[str] = json.loads((kept / _REMARKS).read_text("utf-8"))
            return kept, remarks
        with tempfile.TemporaryDirectory(prefix=_PART, dir=directory) as made:
            remarks = _fill(dumps, Path(made))
            (Path(made) / _REMARKS).write_text(json.dumps(remarks), "utf-8")
            shutil.rmtree(kept, ignore_errors=True)
            os.replace(made, kept)
            os.mkdir(made)  # what the context removes
        _evict(directory, kept)
        return kept, remarks
    except OSError as error:
        raise ViewerError(
            f"A table of {dumps.location} cannot be kept in {directory}: {error.strerror or error}. "
            "XDG_CACHE_HOME names another directory of caches."
        ) from error


def _key_of(dumps: Dumps) -> str:
    """Return a name that changes with the files, their formats, and the code and options that read them."""
    found: list[Any] = [VERSION, _code_of(dumps), dumps.mapped_by]
    for file, name in dumps.files:
        state = file.path.stat()
        found.append((name, str(file.path.absolute()), state.st_size, state.st_mtime_ns, state.st_ino))
    return hashlib.sha256(repr(found).encode()).hexdigest()[:32]


def _code_of(dumps: Dumps) -> str:
    """Return a digest of the code that makes a dump's rows: newer code may read a file differently."""
    ours = {path for room in _ROOMS for path in _PACKAGE.glob(room)}
    readers = (sys.modules[dumps.formats[name].read.__module__] for _, name in dumps.files)
    paths = ours | {Path(module.__file__) for module in readers if module.__file__}
    read = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        read.update(path.read_bytes())
    return read.hexdigest()


def _fill(dumps: Dumps, directory: Path) -> list[str]:
    """Write a dump's spans to a new table; return remarks for a person."""
    store = Store(location_of(str(directory)))
    number = 0
    with ThreadPoolExecutor(1) as writer:  # a commit is written while the next one is read
        written: Future[Any] = writer.submit(store.opened_or_begun)
        made = batches(dumps.spans(), _chars_of, _COMMIT_CHARS, _COMMIT_TRAJECTORIES)
        for number, trajectories in enumerate(made, start=1):
            rows = batch_of(rows_of([span for spans in trajectories for span in spans]))
            written.result()
            written = writer.submit(store.append, [rows], "dump", number)
        written.result()
    if not number:
        raise ViewerError("\n".join([f"{dumps.location} holds no trajectories.", *dumps.remarks]))
    return dumps.remarks


def _chars_of(spans: list[Span]) -> int:
    return sum(len(value) for span in spans for value in span.attributes.values() if type(value) is str)


def _evict(directory: Path, kept: Path) -> None:
    """Remove the tables that were opened longest ago while all exceed ``MAX_BYTES``; keep the new one."""
    size = 0
    for table in sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True):
        size += sum(path.lstat().st_size for path in table.rglob("*") if path.is_file())
        if size > MAX_BYTES and table != kept:
            shutil.rmtree(table, ignore_errors=True)
