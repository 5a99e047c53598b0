"""Open the dumps of frameworks for the commands that read, and say what was opened."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from otel_rollout.base.printable import printable

if TYPE_CHECKING:
    from otel_rollout.look.dumps.opening import Dumps

_GLOB: Final = "*?["
MapOption = Annotated[
    str | None,
    typer.Option(
        "--map",
        help="Fields of a dump of your own, such as messages=conversation,reward=scores.total,step=epoch; "
        "or a file with them.",
    ),
]
DumpFormatOption = Annotated[
    str | None, typer.Option("--format", help="Format of a dump. \\[default: by its content]")
]


class DumpName(str):
    """Files that a person names as a dump.

    Attributes:
        paths: files, folders and patterns.
        format_: their format; None for the one of their content.
        mapped: the fields of a trajectory; None for the usual ones.
    """

    paths: tuple[str, ...]
    format_: str | None
    mapped: str | None

    @classmethod
    def of(cls, paths: Sequence[str], format_: str | None = None, mapped: str | None = None) -> DumpName:
        """Return the name of files."""
        found = cls(" ".join(paths))
        found.paths, found.format_, found.mapped = tuple(paths), format_, mapped
        return found


def reading(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command with the option ``--from`` the option ``--map``."""

    @functools.wraps(command)
    def with_map(*args: Any, map_: str | None = None, from_: str | None = None, **options: Any) -> None:
        if map_ is not None and from_ is not None:
            from_ = DumpName.of([from_], mapped=map_)
        command(*args, from_=from_, **options)

    signature = inspect.signature(command, eval_str=True)
    added = inspect.Parameter("map_", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=MapOption)
    parameters = [*signature.parameters.values(), added]
    with_map.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_map.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_map


def named(name: str) -> Dumps | None:
    """Return the dump that a name means, which may be ``FORMAT:PATH``; None for anything else.

    Raises:
        ViewerError: the dump cannot be opened.
    """
    from otel_rollout.look.dumps import formats
    from otel_rollout.look.dumps.opening import Dumps
    from otel_rollout.look.dumps.readers.messages import Mapped

    if not isinstance(name, DumpName):
        prefix, _, rest = name.partition(":")
        is_format = bool(rest) and not Path(name).exists() and prefix in formats.installed()
        name = DumpName.of([rest], prefix) if is_format else DumpName.of([name])
    if not (name.format_ or name.mapped or len(name.paths) > 1 or _is_dump(name)):
        return None
    return Dumps(name.paths, name.format_, Mapped.parse(name.mapped) if name.mapped else None)


def _is_dump(text: str) -> bool:
    """Return whether a path is neither a spool nor a file of OTLP JSON, and there is something to read."""
    from otel_rollout.look.dumps.dump_file import DumpFile
    from otel_rollout.look.dumps.opening import below
    from otel_rollout.look.errors import ViewerError
    from otel_rollout.otlp.json_line import is_trace_data
    from otel_rollout.spool import files, layout

    path = Path(text).expanduser()
    if path.is_dir():
        is_spool = bool(layout.node_directories(path)) or bool(files.segments_below(path))
        return not is_spool and any(below(path))
    if not path.is_file():
        return not path.exists() and any(sign in text for sign in _GLOB)
    try:
        head = DumpFile(path).head
    except ViewerError:
        return True  # which says why
    return bool(head) and not any(map(is_trace_data, head))


def table_of(name: str) -> Path | None:
    """Return the table of a dump, and say on standard error what was opened; None for anything else.

    Raises:
        ViewerError: the dump cannot be opened, holds no trajectory, or its table cannot be kept.
    """
    dump = named(name)
    if dump is None:
        return None
    from otel_rollout.look.dumps import cache

    path, remarks = cache.table_of(dump, cache.default_directory())
    say([*dump.notes, *remarks])
    return path


def say(remarks: Sequence[str]) -> None:
    """Print remarks beside the command's output."""
    for remark in remarks:
        typer.echo(printable(remark), err=True)
