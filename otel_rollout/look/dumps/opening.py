"""Open dumps: find their files, recognise the formats, and make spans from their trajectories."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_rollout.base.suggest import unknown
from otel_rollout.look.conversation.formatting import counted
from otel_rollout.look.dumps import formats
from otel_rollout.look.dumps.dump_file import MAX_FIELDS, DumpFile
from otel_rollout.look.dumps.formats import LAST, Format, Read
from otel_rollout.look.dumps.readers.messages import Mapped
from otel_rollout.look.dumps.spans import DumpSpans
from otel_rollout.look.dumps.trajectory import RolloutIdentity, identity_part
from otel_rollout.look.errors import ViewerError
from otel_rollout.otlp.span import UNREADABLE, Span
from otel_rollout.table.rows import integer_in

_SUFFIXES: Final = re.compile(r"\.(jsonl?|ndjson|parquet|pt|pkl)(\.gz|\.zst)?$|\.(gz|zst)$", re.IGNORECASE)
"""Matches names of files that are opened in a folder; a file that a person names may have any name."""
_SUBFOLDER: Final = re.compile(
    r"(rollouts?|rollout_?data|dumps?|data|train|training|val|valid|validation|eval|evals|test|all|effective|completions"
    r"|trajectories|models|agent|steps|outputs?|iteration_\d+|step_\d+|global_step_\d+|[0-9a-f]{8}"
    r"|.+__[A-Za-z0-9]{7})(_data|_dumps?)?",
    re.IGNORECASE,
)
"""Matches names of folders that frameworks make below a run's folder."""
_OF_RUN: Final = re.compile(
    r"(\D*_?(step)?_?\d+|traces|results|rollouts?|(train|eval)_rollouts.*|trajectory.*|.*_rollout_summaries)\..*"
)
"""Matches file names that frameworks give: such a file's run is told by its folder."""
_WANTED: Final = "Name a file of JSON lines, JSON, Parquet or PyTorch, or a folder or pattern with some."
_NUMBER: Final = re.compile(r"(\d+)")


@dataclass
class Opened:
    """What was found in the files of one format.

    Attributes:
        title: name of the format's files, for a person.
        files: number of files.
        trajectories: number of trajectories.
        steps: the steps of the trajectories.
        notes: remarks for a person.
    """

    title: str
    files: int = 0
    trajectories: int = 0
    steps: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """What was opened, in one line."""
        first, last = (min(self.steps), max(self.steps)) if self.steps else (None, None)
        steps = "no step" if first is None else f"step {first}" if first == last else f"steps {first}–{last}"
        files, trajectories = counted(self.files, "file"), counted(self.trajectories, "trajectory")
        return f"{self.title}: {files}, {steps}, {trajectories}"


class Dumps:
    """Files that other tools wrote.

    Args:
        paths: files, folders and patterns.
        format_: the format of all files; by default, each file's format is told by its content.
        mapped: the mapping of fields for a user's own records.

    Attributes:
        files: the files with their formats.
        notes: remarks on files that were not opened.
        formats: the known formats by name.
        mapped_by: the format and the mapping of fields that a person gave, each None by default.
        opened: format → what was found in its files; complete after :meth:`spans`.

    Raises:
        ViewerError: no file holds trajectories.
    """

    def __init__(
        self, paths: Sequence[str], format_: str | None = None, mapped: Mapped | None = None
    ) -> None:
        self.location = " ".join(paths)
        self.notes: list[str] = []
        self.opened: dict[str, Opened] = {}
        self.files: list[tuple[DumpFile, str]] = []
        self.formats = formats.installed()
        self.mapped_by = (format_, mapped.fields if mapped else None)
        if mapped is not None:
            format_ = formats.LAST
            self.formats[format_] = Format(format_, mapped.fits, mapped.read)
        elif format_ is not None and format_ not in self.formats:
            raise ViewerError(unknown("format", format_, self.formats))
        found = [DumpFile(path, root) for path, root in files_of(paths)]
        others: list[Path] = []
        for file in found:
            try:
                name = format_ or formats.format_of(file, self.formats)
                if format_ and not mapped and file.head and not self.formats[format_].fits(file):
                    lacking = ", ".join(file.missing) or "what this format has"
                    raise ViewerError(f"{file.path} is no {format_}: its records lack {lacking}.")
            except ViewerError as error:
                self.notes.append(str(error))
                continue
            if name is not None:
                last, format_of_last = self.files[-1] if self.files else (file, "")
                if format_of_last == name and last.path.parent == file.path.parent:
                    file.before = last.path
                self.files.append((file, name))
            elif file.path.name not in formats.BESIDE:
                others.append(file.path)
        if not self.files:
            raise ViewerError(self.notes[0] if self.notes else self._nothing(found))
        if others:
            more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
            self.notes.append(f"Left out, without trajectories: {others[0]}{more}.")

    def _nothing(self, found: Sequence[DumpFile]) -> str:
        """Return why nothing was opened, with an example of a mapping if records have unknown fields."""
        if not found:
            return f"{self.location} holds no dump. {_WANTED}"
        fields = next(filter(None, (file.fields for file in found)), [])
        if not fields:
            why = "it is no dump" if found[0].path.stat().st_size else "it is empty"
            return f"{self.location} holds no records: {why}. {_WANTED}"
        return (
            f"{self.location} has no known format ({', '.join(self.formats)}). "
            f"Its records have the fields {', '.join(fields[:MAX_FIELDS])}. "
            "Say which is which: --map messages=FIELD,reward=FIELD,step=FIELD,sample=FIELD."
        )

    @property
    def remarks(self) -> list[str]:
        """What was opened, in one line per format, with remarks."""
        return [remark for opened in self.opened.values() for remark in (opened.line, *opened.notes)]

    def spans(self) -> Iterator[list[Span]]:
        """Yield the spans of each trajectory, and set :attr:`opened`."""
        clock, seen = itertools.count(1), Counter[bytes]()
        makers: dict[tuple[str, Path], DumpSpans] = {}
        runs = {file.path: _run_of(file.path) for file, _ in self.files}
        names = _names(set(runs.values()))
        for file, name in self.files:
            run = runs[file.path]
            maker = makers.setdefault((name, run), DumpSpans(name, run, names[run], clock, seen))
            opened = self.opened.setdefault(name, Opened(self.formats[name].title))
            yield from self._spans_of(file, self.formats[name].read, maker, opened)
        for (name, run), maker in makers.items():
            if maker.repeated:
                number = f"{counted(maker.repeated, 'trajectory')} of {names[run]}"
                way = "; --map step=FIELD,sample=FIELD tells them apart" if name == LAST else ""
                note = f"{number} with an identity that another has: each is shown{way}."
                self.opened[name].notes.append(note)

    def _spans_of(self, file: DumpFile, read: Read, maker: DumpSpans, opened: Opened) -> Iterator[list[Span]]:
        opened.files += 1
        shown = file.path.relative_to(file.root) if file.path.is_relative_to(file.root) else file.path
        try:
            for dumped in read(file):
                opened.trajectories += 1
                *parts, is_validation, group = dumped.identity
                step, sample, rollout = map(identity_part, parts)
                step = file.folders_step if step is None else step
                dumped.identity = RolloutIdentity(step, sample, rollout, is_validation, group)
                if (number := integer_in(str(step))) is not None:
                    opened.steps.add(number)
                yield maker.of(dumped, f"{shown}:{dumped.place}", file.mark_of(dumped.place))
        except ViewerError as error:
            opened.notes.append(str(error))
        except UNREADABLE as error:  # in a reader: a record has other types than its format has
            opened.notes.append(f"{file.path}: the rest is not read, after {type(error).__name__}: {error}")
        opened.notes += [note for note in file.remarks() if note not in opened.notes]


def _run_of(path: Path) -> Path:
    """Return the path that stands for a file's run.

    For a file that a framework has named, it is the nearest folder that frameworks do not make. For another
    file, it is the file's path without suffix.
    """
    inside = path.parent.resolve()
    folders = (inside, *inside.parents) if _OF_RUN.fullmatch(path.name) else ()
    named = (folder for folder in folders if folder.name and not _SUBFOLDER.fullmatch(folder.name))
    return next(named, inside / path.name.partition(".")[0])


def _names(runs: Collection[Path]) -> dict[Path, str]:
    """Return run → its name: the shortest end of its path that no other run's path has."""
    ends = {run: [Path(*run.parts[-length:]) for length in range(1, len(run.parts) + 1)] for run in runs}
    number = Counter(itertools.chain.from_iterable(ends.values()))
    return {run: str(next(end for end in of_run if number[end] == 1)) for run, of_run in ends.items()}


def files_of(paths: Sequence[str]) -> list[tuple[Path, Path]]:
    """Return files, each with the folder that a person named, or the file's own folder.

    Files are sorted by name, and numbers in names by value.

    Raises:
        ViewerError: a path does not exist.
    """
    found: dict[Path, Path] = {}
    for text in paths:
        path = Path(text).expanduser()
        named = [path] if path.exists() else map(Path, glob.glob(str(path), recursive=True))
        matching = [each for each in named if each.is_dir() or each.is_file()]
        if not matching:
            raise ViewerError(f"There is no file or directory {text}. {_WANTED}")
        for each in matching:
            found = (dict.fromkeys(below(each), each) if each.is_dir() else {each: each.parent}) | found
    return sorted(found.items(), key=lambda item: [_ordered(part) for part in item[0].parts])


def below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that may be dumps, and the folders that cannot be read.

    Links to folders are not followed.
    """
    failed: list[OSError] = []
    for directory, folders, names in os.walk(folder, onerror=failed.append):
        folders[:] = [name for name in folders if not name.startswith((".", "_delta_log"))]
        for name in names:
            path = Path(directory, name)
            if _SUFFIXES.search(name) and not name.startswith(".") and path.is_file():
                yield path
    yield from (Path(error.filename) for error in failed)


def _ordered(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in a name by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(name)]
