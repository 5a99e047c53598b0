"""Find the format of a dump by its content, among the installed readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, NamedTuple

from otel_rollout.look.dumps.dump_file import DumpFile
from otel_rollout.look.dumps.trajectory import DumpedTrajectory

READERS: Final = "otel_rollout.readers"
"""Group of entry points: the name of a format → its :class:`Format`."""
_OURS: Final = (
    *("verl", "verifiers", "verifiers-results", "trl", "atif", "nemo-gym", "nemo-rl", "slime"),
    *("tinker", "art"),
)
"""Our formats in the order in which they are tried, before formats of other packages."""
LAST: Final = "messages"
"""Format that is tried last; the option ``--map`` names its fields."""
BESIDE: Final = frozenset({"result.json"})
"""Names of files that are read together with another file, and are no dumps themselves."""

Read = Callable[[DumpFile], Iterator[DumpedTrajectory]]


class Format(NamedTuple):
    """A format of dumps.

    Attributes:
        title: name of its files, for a person.
        fits: returns whether a file has this format, by the file's ``head``.
        read: yields the trajectories of a file.
    """

    title: str
    fits: Callable[[DumpFile], bool]
    read: Read


def installed() -> dict[str, Format]:
    """Return the formats by name, in the order in which they are tried; ``messages`` is the last."""
    ours = {name: _of_module(name) for name in _OURS}
    others = {point.name: point.load() for point in entry_points(group=READERS)}
    return {**ours, **others, LAST: _of_module(LAST)}


def _of_module(name: str) -> Format:
    found: Format = import_module(f"{__package__}.readers.{name.replace('-', '_')}").FORMAT
    return found


def format_of(file: DumpFile, known: Mapping[str, Format]) -> str | None:
    """Return the name of a file's format; None if no reader knows it."""
    return next((name for name, format_ in known.items() if file.head and format_.fits(file)), None)
