"""Open dumps of frameworks for commands, and print remarks about them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from otel_rollout.cli.page_output import say
from otel_rollout.look.dumps import cache, formats
from otel_rollout.look.dumps.dump_file import DumpFile
from otel_rollout.look.dumps.opening import Dumps, below
from otel_rollout.look.dumps.readers.messages import Mapped
from otel_rollout.look.errors import ViewerError
from otel_rollout.otlp.json_line import is_trace_data
from otel_rollout.spool import files, layout

_GLOB: Final = "*?["
MapOption = Annotated[
    str | None,
    typer.Option(
        "--map",
        help="Fields of a dump of your own, such as reward=score,step=epoch or a file with them.",
    ),
]
DumpFormatOption = Annotated[
    str | None, typer.Option("--format", help="Format of a dump. \\[default: by its content]")
]


@dataclass(frozen=True)
class DumpName:
    """Files that a person names as a dump.

    Attributes:
        paths: files, folders and patterns.
        format_: format of the files; None to tell it by their content.
        mapped: text of the option ``--map``; None for the usual fields.
    """

    paths: tuple[str, ...]
    format_: str | None = None
    mapped: str | None = None

    def __str__(self) -> str:
        return " ".join(self.paths)


def reading(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option ``--map`` to a command that has the option ``--from``."""

    @functools.wraps(command)
    def with_map(*args: Any, map_: str | None = None, from_: str | None = None, **options: Any) -> None:
        if map_ is not None and from_ is None:
            raise ViewerError("--map names fields of a dump: name the dump with --from.")
        command(*args, from_=DumpName((str(from_),), mapped=map_) if map_ is not None else from_, **options)

    signature = inspect.signature(command, eval_str=True)
    added = inspect.Parameter("map_", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=MapOption)
    parameters = [*signature.parameters.values(), added]
    with_map.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_map.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_map


def source_options(from_: str | DumpName | None, run: str | None) -> dict[str, str | None]:
    """Return the options with which another command reads the same run of the same source.

    Args:
        from_: the option ``--from``.
        run: name of the run; None where no name is needed.
    """
    mapped = from_.mapped if isinstance(from_, DumpName) else None
    return {"--run": run, "--from": str(from_ or ""), "--map": mapped}


def named(text: str) -> DumpName | None:
    """Return the dump that a text names as a path, a pattern or ``FORMAT:PATH``; None if it names no dump.

    The format may be unknown, of a path that exists: :func:`opened` says so.
    """
    prefix, _, rest = text.partition(":")
    is_whole = not rest or prefix == "mlflow" or Path(text).exists()
    if not is_whole and (prefix in formats.installed() or Path(rest).exists()):
        return DumpName((rest,), prefix)
    return DumpName((text,)) if _is_dump(text) else None


def opened(name: DumpName) -> Dumps:
    """Open a dump.

    Raises:
        ViewerError: the dump cannot be opened.
    """
    return Dumps(name.paths, name.format_, Mapped.parse(name.mapped) if name.mapped else None)


def _is_dump(text: str) -> bool:
    """Return whether a text names a file of another program, a directory with such files, or a pattern."""
    path = Path(text).expanduser()
    if path.is_dir():
        is_spool = bool(layout.node_directories(path)) or bool(files.segments_below(path))
        return not is_spool and any(below(path))
    if not path.is_file():
        return not path.exists() and any(sign in text for sign in _GLOB)
    try:
        return not files.is_named_like_ours(path) and not any(map(is_trace_data, DumpFile(path).head))
    except ViewerError:
        return True  # to open the dump then says why


def table_of(name: DumpName) -> Path:
    """Return the table of a dump, and say on standard error what was opened.

    Raises:
        ViewerError: the dump cannot be opened, holds no trajectory, or its table cannot be kept.
    """
    dump = opened(name)
    path, remarks = cache.table_of(dump, cache.default_directory())
    say(*dump.notes, *remarks)
    return path
