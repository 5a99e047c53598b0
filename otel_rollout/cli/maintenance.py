"""Implement the commands of ``table``: keep a rollout table small."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.filesize import decimal

from otel_rollout.base import setting_parsers
from otel_rollout.cli.commands import epilog
from otel_rollout.cli.page_output import tell
from otel_rollout.cli.sources import store_at, table_address
from otel_rollout.cli.table_output import print_table
from otel_rollout.look.conversation.formatting import counted
from otel_rollout.look.listings import ListedColumn
from otel_rollout.table import compaction, pruning
from otel_rollout.table.errors import TableError
from otel_rollout.table.location import DEFAULT_URI
from otel_rollout.table.pruning import Choice, Shares
from otel_rollout.table.query import Engine
from otel_rollout.table.store import Store
from otel_rollout.table.verification import Difference, differences, of_sample

_HOUR: Final = 3600
_BYTES: Final = {
    f"{prefix}{unit}B".lower(): base**power
    for unit, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("KMGT", 1)
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b)", re.IGNORECASE)
_COLUMNS: Final = ("run_id", "first_step", "last_step", "steps", "trajectories", "rows", "newest", "size")

app = typer.Typer(help="Keep a rollout table small.", epilog=epilog("table"), no_args_is_help=True)

UriArgument = Annotated[
    str | None,
    typer.Argument(
        help="The table: a directory or s3://… \\[default: OTEL_ROLLOUT_DELTA_URI, or ./rollouts]",
        metavar="URI",
        show_default=False,
    ),
]
RetentionOption = Annotated[
    str,
    typer.Option(
        "--retention",
        help="How long replaced files stay for those who read them, as 12h or 7d.",
        metavar="TIME",
    ),
]


@app.command(epilog=epilog("table compact"))
def compact(uri: UriArgument = None, retention: RetentionOption = "24h") -> None:
    """Merge small files, sorted by run and step; remove files and log entries that nobody needs.

    Forwarders may write meanwhile. One process at a time compacts or prunes a table.
    """
    hours = round(_hours(retention, "--retention"))
    done = compaction.compact(_store(uri), hours, tell)
    were = "was" if done.removed == 1 else "were"
    tell(
        f"{counted(done.files_before, 'file')} ({decimal(done.bytes_before)}) became {done.files_after} "
        f"({decimal(done.bytes_after)}); {counted(done.removed, 'file')} of earlier versions {were} removed."
    )


@app.command(epilog=epilog("table prune"))
def prune(
    uri: UriArgument = None,
    older_than: Annotated[
        str | None,
        typer.Option(help="Remove steps whose newest span is older, as 30d or 12h.", metavar="TIME"),
    ] = None,
    runs: Annotated[
        str | None, typer.Option(help="Remove runs: ids, comma separated.", metavar="IDS")
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(help="Remove the oldest steps until the rest fits, as 10GB or 500MB.", metavar="SIZE"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it. Without, only show what would go.")] = False,
    retention: RetentionOption = "24h",
) -> None:
    """Remove whole training steps: by age, by run, or until the rest is small enough.

    Without `--yes` nothing is removed. Removed rows stay on disk for the
    retention, and then go with the next `prune` or `compact`.
    """
    hours = round(_hours(retention, "--retention"))
    choice = _choice(older_than, runs, max_size)
    store = _store(uri)
    if yes:
        gone = pruning.prune(store, choice, hours)
        _show(gone)
        tell(f"Removed {_counts(gone)} from {store.location.uri}.")
        return
    gone, left = pruning.preview(store, choice)
    _show(gone)
    if gone:
        tell(f"Would remove {_counts(gone)}, and leave {_counts(left)}. Add --yes to remove them.")
    else:
        tell(f"Nothing to remove: {store.location.uri} has {_counts(left)}.")


@app.command(epilog=epilog("table verify"))
def verify(
    uri: UriArgument = None,
    sample: Annotated[
        int | None, typer.Option(help="Check so many trajectories, drawn at random.", min=1, metavar="N")
    ] = None,
) -> None:
    """Compare what `compact` or `prune` has stored of each trajectory with what its spans say.

    Prints each difference: the figure as queries see it, and as the spans give
    it. With differences, the exit status is 1; `compact` after the removal of
    the directory `_trajectories` stores the figures anew.
    """
    store = _store(uri)
    table, number = store.open(), 0
    whole = (Engine(table), Engine(table, may_merge=False))
    for found in of_sample(table, sample) if sample else differences(*whole):
        tell(_told(found))
        number += 1
    if number:
        tell(f"{counted(number, 'difference')} in {store.location.uri}.")
        raise typer.Exit(1)
    tell(f"No difference in {store.location.uri}.")


def _told(found: Difference) -> str:
    """Return a difference as one line."""
    if not found.column:
        return (
            f"{found.trace_id}: a row is {'stored, and not in the spans' if found.stored else 'not stored'}"
        )
    return f"{found.trace_id} {found.column}: stored {found.stored!r}, recomputed {found.recomputed!r}"


def _store(uri: str | None) -> Store:
    """Return the named table."""
    address = uri or table_address(None)
    if address is None:
        raise TableError(f"There is no table at {DEFAULT_URI}: name the table.")
    return store_at(address)


def _choice(older_than: str | None, runs: str | None, max_size: str | None) -> Choice:
    """Return which steps the options choose."""
    if sum(option is not None for option in (older_than, runs, max_size)) != 1:
        raise TableError("Name one of --older-than, --runs and --max-size.")
    if older_than is not None:
        age = _hours(older_than, "--older-than") * _HOUR
        return pruning.older_than(time.time_ns() - round(age * 1e9))
    if runs is not None:
        named = setting_parsers.listed(runs)
        if not named:
            raise TableError("--runs names no run: give run ids, separated by commas.")
        return pruning.of_runs(named)
    return pruning.beyond(_bytes(max_size or "", "--max-size"))


def _hours(text: str, source: str) -> float:
    """Return a duration such as ``12h``, ``30d`` or ``2w`` in hours."""
    try:
        return setting_parsers.hours(text)
    except ValueError as error:
        raise TableError(f"{source} {text!r} {error}.") from None


def _bytes(text: str, source: str) -> int:
    """Return a size such as ``10GB`` or ``500MB`` in bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise TableError(f"{source} {text!r} cannot be read: write a number and a unit, as 10GB or 500MB.")
    return int(float(match[1]) * _BYTES[match[2].lower()])


def _show(shares: Shares) -> None:
    """Print a row per run."""
    rows: list[dict[str, Any]] = []
    for run in sorted({share.unit.run_id or "" for share in shares}):
        of_run = [share for share in shares if (share.unit.run_id or "") == run]
        steps = {share.unit.step for share in of_run if share.trajectories and share.unit.step is not None}
        newest = max(share.newest_ns for share in of_run)
        values = (
            run,
            min(steps, default=None),
            max(steps, default=None),
            len(steps),
            sum(share.trajectories for share in of_run),
            sum(share.rows for share in of_run),
            f"{datetime.fromtimestamp(newest / 1e9, UTC):%Y-%m-%d %H:%M}",
            decimal(sum(share.size for share in of_run)),
        )
        rows.append(dict(zip(_COLUMNS, values, strict=True)))
    if rows:
        print_table(rows, [ListedColumn(name, "name", place) for place, name in enumerate(_COLUMNS)], [])


def _counts(shares: Shares) -> str:
    names = ("trajectories", "rows", "size")
    number, rows, size = (sum(getattr(share, name) for share in shares) for name in names)
    return f"{counted(number, 'trajectory')} ({counted(rows, 'row')}, {decimal(size)})"
