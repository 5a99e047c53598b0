"""Read the records of a file that another tool wrote: JSON lines, JSON, Parquet, or a PyTorch file.

The kind of file is told by its first bytes, not by its name. A record that cannot be read is left out alone.
Such records are counted, and the first few are named.
"""

from __future__ import annotations

import gzip
import io
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeAlias

from otel_rollout.look.conversation.formatting import counted
from otel_rollout.look.dumps import torch_file
from otel_rollout.look.dumps.trajectory import Groups
from otel_rollout.look.dumps.values import decoded, entries_of
from otel_rollout.look.errors import ViewerError, unreadable
from otel_rollout.spool import zstd
from otel_rollout.spool.files import BoundedReader

Record: TypeAlias = Mapping[str, Any]
Placed: TypeAlias = tuple[int, Record]
"""Number of a line or row, from 1, and its record."""
_Read: TypeAlias = tuple[int, Record, bytes | None]
"""Number of a line or row, its record, and the line itself; None for a file that is not read by lines."""

MAX_LINE_BYTES: Final = 256 << 20
"""Maximum length of a line: lines with images or with the token ids of a whole loop have 100 MB."""
MAX_RATIO: Final = 1000
"""Maximum ratio of decompressed to compressed bytes, from ``ALWAYS_ALLOWED_BYTES`` on."""
ALWAYS_ALLOWED_BYTES: Final = 1 << 30
_HEAD_RECORDS: Final = 8
_MAX_NAMED: Final = 3
MAX_FIELDS: Final = 12
"""Maximum fields that a message names."""
_ROWS: Final = 256
"""Rows of a Parquet file that are decoded at once."""
_GZIP, _ZSTD, _PARQUET, _ZIP, _PICKLE = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"PK\x03\x04", b"\x80"
_NO_OBJECT: Final = "is no JSON object"
_JSON_PLACE: Final = re.compile(r"(?: starting)?(?: at)?: line .*", re.DOTALL)
"""Matches the place after the reason in an error about JSON."""
_STEP: Final = re.compile(r"(?:global_)?step_(\d+)")
NAMES_VALIDATION: Final = re.compile(
    r"(^|[_-])(val|valid|validation|eval|evals|evaluation)([_-]|\d|\.|$)", re.IGNORECASE
)


class DumpFile:
    """A file with trajectories.

    Args:
        path: the file.
        root: the directory that a person named; names of files in messages begin below it.

    Attributes:
        before: the previous file, in the order of opening, if it has the same folder and format; else None.
        groups: assigns numbers where the file has no index.
        missing: those of the keys in the last call of :meth:`has` that no record has.
    """

    def __init__(self, path: Path, root: Path | None = None) -> None:
        self.path = path
        self.root = path.parent if root is None else root
        self.before: Path | None = None
        self.groups = Groups()
        self.missing: list[str] = []
        self._notes: dict[str, None] = {}
        self._left_out: list[str] = []
        self._left_out_count = 0
        self._is_cut = False
        self._marks: dict[int, bytes] = {}

    @cached_property
    def head(self) -> list[Record]:
        """The first few records; empty if the file holds no records."""
        records = DumpFile(self.path, self.root).records()  # problems are counted when all is read
        return [record for _, record in itertools.islice(records, _HEAD_RECORDS)]

    @property
    def fields(self) -> list[str]:
        """The names of the first record's fields, then those of nested objects with dots."""
        found = [*entries_of(self.head[0] if self.head else {}, object).items()]
        for name, value in found:
            found += [(f"{name}.{inner}", each) for inner, each in entries_of(value, object).items()]
        return [name for name, _ in found]

    def has(self, *names: str) -> bool:
        """Return whether most of the first records have all of these keys."""
        self.missing = [name for name in names if not any(name in record for record in self.head)]
        return 2 * sum(all(name in record for name in names) for record in self.head) > len(self.head)

    @cached_property
    def is_validation(self) -> bool:
        """Whether the name of the file, or of one of its three nearest folders, names a validation."""
        return any(map(NAMES_VALIDATION.search, self.path.absolute().parts[-4:]))

    @property
    def number(self) -> int | None:
        """The last number in the file's name, where many writers put the step; None without a number."""
        found = re.findall(r"\d+", self.path.name.partition(".")[0])
        return int(found[-1]) if found else None

    @cached_property
    def folders_step(self) -> int | None:
        """The step in the name of the nearest folder that is called like ``step_12``; None without one."""
        found = map(_STEP.fullmatch, reversed(self.path.absolute().parts[-4:-1]))
        return next((int(match[1]) for match in found if match), None)

    def note(self, text: str) -> None:
        """Add a remark about the file; repeated remarks count once."""
        self._notes[text] = None

    def leave_out(self, place: int, reason: str) -> None:
        """Count a record that cannot be read, and keep the reasons of the first few."""
        self._left_out_count += 1
        if len(self._left_out) < _MAX_NAMED:
            self._left_out.append(f"line {place}: {reason}")

    def remarks(self) -> Iterator[str]:
        """Yield remarks for a person about what has been read."""
        yield from self._notes
        if self._left_out:
            count, named = self._left_out_count, "; ".join(self._left_out)
            yield f"{self.path}: {counted(count, 'record')} could not be read ({named})."
        if self._is_cut:
            yield f"{self.path}: the last line has no end: it is being written, or was cut."

    def mark_of(self, place: int) -> bytes:
        """Return a digest of a record and of all records before it in the file, which identifies the record.

        The digests stay the same if the file is copied or grows. The digest of a record that was not read is
        empty.
        """
        return self._marks.get(place, b"")

    def records(self) -> Iterator[Placed]:
        """Yield the records with the numbers of their lines or rows.

        Raises:
            ViewerError: the file cannot be read at all.
        """
        read = blake2b(digest_size=16)
        for place, record, line in self._records():
            read.update(repr(record).encode() if line is None else line.strip())
            self._marks[place] = read.digest()
            yield place, record

    def _records(self) -> Iterator[_Read]:
        try:
            with open(self.path, "rb") as file:
                first = file.read(len(_ZSTD))
            if first == _PARQUET:
                yield from self._rows()
            elif first == _ZIP:
                yield from self._numbered(torch_file.records_of(self.path))
            elif first[:1] == _PICKLE:
                raise ViewerError(f"{self.path} is a pickle, which may run code: it is not opened.")
            else:
                yield from self._of_text()
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _rows(self) -> Iterator[_Read]:
        """Yield the rows of a Parquet file."""
        try:
            from pyarrow import ArrowException, parquet
        except ModuleNotFoundError as error:
            raise ViewerError(f"{self.path} is Parquet, which needs pyarrow: pip install pyarrow") from error
        try:
            with parquet.ParquetFile(self.path) as file:
                batches = file.iter_batches(_ROWS)
                yield from self._numbered(row for batch in batches for row in batch.to_pylist())
        except ArrowException as error:
            raise ViewerError(f"{self.path} cannot be read as Parquet: {error}") from error

    def _of_text(self) -> Iterator[_Read]:
        """Yield the objects of JSON lines, or of one JSON document."""
        with self._opened() as (file, size):
            for number, line in _lines(file, size):
                if not line.strip():
                    continue
                try:
                    if len(line) > MAX_LINE_BYTES:
                        raise ValueError(f"is longer than {MAX_LINE_BYTES >> 20} MiB")
                    found = decoded(line)
                except (ValueError, RecursionError) as error:
                    if number == 1 and (document := self._document()) is not None:
                        yield from document
                        return
                    if number == 1 and b"\0" in line[: 1 << 16]:
                        return  # no text
                    if line.endswith(b"\n"):
                        self.leave_out(number, _JSON_PLACE.sub("", str(error)))
                    else:
                        self._is_cut = True
                    continue
                if number == 1 and isinstance(found, list) and any(isinstance(each, dict) for each in found):
                    yield from self._numbered(found)
                elif isinstance(found, dict):
                    yield number, found, line
                else:
                    self.leave_out(number, _NO_OBJECT)

    def _document(self) -> Iterator[_Read] | None:
        """Return the objects of a JSON document of several lines; None if the file is no JSON document."""
        with self._opened() as (file, size):
            text = file.read(min(size, MAX_LINE_BYTES + 1))
        try:
            found = decoded(text) if len(text) <= MAX_LINE_BYTES else None
        except (ValueError, RecursionError):
            return None
        return self._numbered(found if isinstance(found, list) else [found])

    def _numbered(self, values: Iterable[Any]) -> Iterator[_Read]:
        for place, value in enumerate(values, start=1):
            if isinstance(value, dict):
                yield place, value, None
            else:
                self.leave_out(place, _NO_OBJECT)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, int]]:
        """Open a text file, compressed or not; yield the file, and the maximum number of bytes to read."""
        with open(self.path, "rb") as file:
            first = file.read(len(_ZSTD))
            file.seek(0)
            size = os.fstat(file.fileno()).st_size
            is_gzip = first.startswith(_GZIP)
            if not is_gzip and first != _ZSTD:
                yield file, size  # the file may grow meanwhile
                return
            try:
                with gzip.open(file) if is_gzip else zstd.ZstdFile(file, "r") as plain:
                    bounded = BoundedReader(plain, self.path, max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * size))
                    yield io.BufferedReader(bounded), sys.maxsize
            except Exception as error:
                raise ViewerError(f"{self.path} cannot be decompressed: {error}") from error
            if bounded.is_cut_off:
                self.note(f"{self.path} is cut off: its end is missing, and only what precedes it is read.")


def _lines(file: Any, left: int) -> Iterator[tuple[int, bytes]]:
    """Yield numbers and lines, split at newlines only; of a line above the limit, yield the beginning."""
    for number in itertools.count(1):
        line = rest = file.readline(min(left, MAX_LINE_BYTES + 1))
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            left -= len(rest)
            rest = file.readline(min(left, MAX_LINE_BYTES + 1))
        left -= len(rest)
        if not line:
            return
        yield number, line if rest is line or not rest.endswith(b"\n") else line + b"\n"
