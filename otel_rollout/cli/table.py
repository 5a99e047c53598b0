"""Implement the commands ``list``, ``groups``, ``steps`` and ``query``: ask the rollout table's views."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from otel_rollout.cli.page_output import writing
from otel_rollout.cli.table_output import FORMATS, Format, print_table, write, write_parquet
from otel_rollout.table import broken_prefix, engine_time, training, views

_PAGE: Final = 50
"""Rows that a table shows unless ``--limit`` says otherwise."""
_LISTED: Final = {
    "trajectories": (
        "path", "trace_id", "reward", "state", "seconds", "turns", "tool_calls", "tool_errors", "tokens_in",
        "tokens_out", "error_type",
    ),
    "groups": (
        "path", "trajectories", "failed", "rewarded", "reward_mean", "reward_min", "reward_max",
        "reward_spread", "tool_calls", "tool_errors", "tokens_out",
    ),
    "steps": (
        "step", "groups", "trajectories", "failed", "rewarded", "reward_mean", "reward_min", "reward_max",
        "reward_std", "turns_mean", "tool_calls", "tool_errors", "tokens_out", "seconds_mean",
    ),
}  # fmt: skip
"""View → the columns that its table shows; files have all columns."""
_WITH_TRAINING: Final = (
    "path", "trace_id", "reward", "state", "trained", "reason", "advantage", "lag", "mismatch",
    "mismatch_turn",
)  # fmt: skip
"""Columns of a list that is asked for what training made of the trajectories."""
_BESIDE_ENGINE: Final = ("path", "trace_id", "reward", "state", "seconds", "turns")
"""Columns of a list that is asked for the time in an inference engine, besides that time."""
_ORDER_OF_STEPS: Final = "validate, run_id, project, experiment, step"
_ORDER_OF_GROUPS: Final = f"{_ORDER_OF_STEPS}, TRY_CAST(sample_index AS BIGINT), sample_index, group_path"
_ORDER: Final = {
    "trajectories": f"{_ORDER_OF_GROUPS}, rollout_n, path, start_time, trace_id",
    "groups": _ORDER_OF_GROUPS.replace("group_path", "path"),
    "steps": _ORDER_OF_STEPS,
}
_DIGITS: Final = 8
"""Digits of a trace id in a table."""

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="A rollout table (directory or s3://…), a spool, run or node directory, or a file of OTLP JSON "
        "Lines. \\[default: OTEL_ROLLOUT_DELTA_URI, a table at ./rollouts, or the spool]",
    ),
]
StepOption = Annotated[str | None, typer.Option("--step", help="Steps.", metavar="NUMBERS")]
SampleOption = Annotated[str | None, typer.Option("--sample", help="One dataset row.")]
RewardOption = Annotated[str | None, typer.Option("--reward", help="Reward.", metavar="NUMBERS")]
MismatchOption = Annotated[
    str | None,
    typer.Option(
        help="Largest difference of the sampler's and the trainer's log probability.", metavar="NUMBERS"
    ),
]
QueueOption = Annotated[
    str | None, typer.Option(help="Seconds in an inference engine's queue.", metavar="NUMBERS")
]
RunOption = Annotated[str | None, typer.Option("--run", help="A run's id or experiment, or `latest`.")]
ValidationOption = Annotated[
    bool | None, typer.Option("--validation/--training", help="Only of validation, or only of training.")
]
WhereOption = Annotated[
    str | None, typer.Option("--where", help="A SQL condition on the view's columns.", metavar="SQL")
]
SortOption = Annotated[
    str | None, typer.Option("--sort", help="A column; -COLUMN is descending. Several with commas.")
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=0,
        metavar="ROWS",
        help=f"Maximum rows; 0 for all. \\[default: {_PAGE} of a table, else all]",
    ),
]
FormatOption = Annotated[str, typer.Option("--format", help=", ".join(FORMATS) + ".")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of standard output.")
]


def list_(
    from_: FromOption = None,
    step: StepOption = None,
    sample: SampleOption = None,
    reward: RewardOption = None,
    turns: Annotated[str | None, typer.Option(help="Model calls.", metavar="NUMBERS")] = None,
    seconds: Annotated[str | None, typer.Option(help="Duration.", metavar="NUMBERS")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Ended with an error.")] = False,
    running: Annotated[bool, typer.Option("--running", help="Not ended yet.")] = False,
    tool_error: Annotated[bool, typer.Option("--tool-error", help="With a failed tool call.")] = False,
    filtered: Annotated[
        bool, typer.Option("--filtered", help="Not trained on: the loss left them out.")
    ] = False,
    lag: Annotated[str | None, typer.Option(help="Policy lag, in versions.", metavar="NUMBERS")] = None,
    mismatch: MismatchOption = None,
    queue: QueueOption = None,
    is_broken: Annotated[
        bool,
        typer.Option("--broken-prefix", help="With a turn whose tokens are not the next prompt's beginning."),
    ] = False,
    validation: ValidationOption = None,
    run: RunOption = None,
    where: WhereOption = None,
    sort: SortOption = None,
    limit: LimitOption = None,
    format_: FormatOption = "table",
    output: OutputOption = None,
) -> None:
    """List trajectories: filter, sort, and write them as CSV, JSON or Parquet.

    NUMBERS are a number, a range 1-3, a comparison '<0.1', or several with commas.
    """
    numbers = {
        "step": step, "reward": reward, "turns": turns, "seconds": seconds, "lag": lag, "mismatch": mismatch,
        "queue_seconds": queue,
    }  # fmt: skip
    states = [state for state, is_wanted in (("error", failed), ("running", running)) if is_wanted]
    equal = {"sample_index": sample, "validate": validation, "state": states or None}
    further = ["tool_errors > 0"] if tool_error else []
    further += [training.FILTERED] if filtered else []
    further += [broken_prefix.CONDITION] if is_broken else []
    _show_view("trajectories", from_, numbers, equal, further, run, where, sort, limit, format_, output)


def groups(
    from_: FromOption = None,
    step: StepOption = None,
    sample: SampleOption = None,
    reward: Annotated[str | None, typer.Option("--reward", help="Mean reward.", metavar="NUMBERS")] = None,
    validation: ValidationOption = None,
    run: RunOption = None,
    where: WhereOption = None,
    sort: SortOption = None,
    limit: LimitOption = None,
    format_: FormatOption = "table",
    output: OutputOption = None,
) -> None:
    """List groups with the mean, least and greatest reward and its spread.

    NUMBERS are a number, a range 1-3, a comparison '<0.1', or several with commas.
    """
    numbers = {"step": step, "reward_mean": reward}
    equal = {"sample_index": sample, "validate": validation}
    _show_view("groups", from_, numbers, equal, [], run, where, sort, limit, format_, output)


def steps(
    from_: FromOption = None,
    step: StepOption = None,
    validation: ValidationOption = None,
    run: RunOption = None,
    where: WhereOption = None,
    sort: SortOption = None,
    limit: LimitOption = None,
    format_: FormatOption = "table",
    output: OutputOption = None,
) -> None:
    """List steps with mean reward, failures, tool calls and tokens.

    NUMBERS are a number, a range 1-3, a comparison '<0.1', or several with commas.
    """
    equal = {"validate": validation}
    _show_view("steps", from_, {"step": step}, equal, [], run, where, sort, limit, format_, output)


def query(
    sql: Annotated[str, typer.Argument(help="One SELECT on the views.", metavar="SELECT")],
    from_: FromOption = None,
    limit: LimitOption = None,
    format_: FormatOption = "table",
    output: OutputOption = None,
) -> None:
    """Run one SELECT on views such as trajectories, turns, tool_calls, scores, groups, steps and runs."""
    with errors_reported():
        chosen = _format(format_, output)
        from otel_rollout.cli.sources import as_table
        from otel_rollout.table.query import Engine

        with as_table(from_) as (store, location):
            engine = Engine(store.open())
            with ended_by_ctrl_c(store.location.uri == location and chosen != "parquet"):
                _show(engine, engine.check(sql), (), chosen, limit, output, location)


def _show_view(
    view: str,
    from_: str | None,
    numbers: dict[str, str | None],
    equal: dict[str, Any],
    conditions: list[str],
    run: str | None,
    where: str | None,
    sort: str | None,
    limit: int | None,
    format_: str,
    output: Path | None,
) -> None:
    """Show the rows of a view that the options describe."""
    with errors_reported():
        chosen = _format(format_, output)
        from otel_rollout.cli.sources import as_table
        from otel_rollout.look.analysis.run_choice import run_of
        from otel_rollout.table import filters
        from otel_rollout.table.query import Engine

        described = [
            filters.numbers(name, text, f"--{name.partition('_')[0]}")
            for name, text in numbers.items()
            if text is not None
        ]
        described += [filters.equals(name, value) for name, value in equal.items() if value is not None]
        named = [*described, *conditions, *([where] if where else []), *([sort] if sort else [])]
        source, columns = _source_of(view, named)
        if where is not None:
            described.append(filters.where(where))
        with as_table(from_) as (store, location):
            engine = Engine(store.open(), keep=frozenset() if source == view else views.SLOW)
            if run is not None:
                described.append(run_of(engine, run).condition)
            order = _ORDER[view]
            if sort is not None:
                known = engine.columns_of(source)
                order = ", ".join([*(filters.order(name.strip(), known) for name in sort.split(",")), order])
            conditions = [*described, *conditions]
            sql = f"SELECT * FROM {source}{filters.all_of(conditions)} ORDER BY {order}"  # noqa: S608
            wanted = (_PAGE if limit is None else limit) if chosen == "table" else limit
            if wanted:  # one more than a table shows, to know whether there are more
                sql += f" LIMIT {wanted + (chosen == 'table')}"
            limit = limit if chosen == "table" else None
            with ended_by_ctrl_c(store.location.uri == location and chosen != "parquet"):
                _show(engine, engine.check(sql), columns, chosen, limit, output, location)


def _source_of(view: str, named: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the view, joined with those whose columns are named, and the columns to show.

    Args:
        view: the view.
        named: conditions and orders.
    """
    source, columns = view, _LISTED[view]
    if view != "trajectories":
        return source, columns
    if training.is_named_in(*named):
        source, columns = training.TRAJECTORIES, _WITH_TRAINING
    if broken_prefix.is_named_in(*named):
        source, columns = broken_prefix.joined_to(source), (*columns, *broken_prefix.COLUMNS)
    if engine_time.is_named_in(*named):
        beside = _BESIDE_ENGINE if source == view else columns
        source, columns = engine_time.joined_to(source), (*beside, *engine_time.COLUMNS)
    return source, columns


def _show(
    engine: Any,
    sql: str,
    columns: tuple[str, ...],
    format_: Format,
    limit: int | None,
    output: Path | None,
    location: str,
) -> None:
    """Run a checked query and write its rows."""
    from otel_rollout.table.row_set import dicts_of

    if format_ == "parquet":
        with writing("output"):
            write_parquet(lambda path: engine.write_parquet(sql, path, limit), output)
        return
    if format_ != "table":
        with writing("output"):
            write(engine.run(sql, limit), format_, output)
        return
    page = _PAGE if limit is None else limit
    table = engine.run(sql, page + 1 if page else None)
    rows = dicts_of(table.slice(0, min(page or table.num_rows, table.num_rows)))
    runs = _columns_of_runs(engine) if columns else []
    names = [*runs, *(columns or table.column_names)]
    if columns and any(row["validate"] for row in rows) and "path" not in names:
        names.insert(0, "validate")
    for row in rows:
        if columns and "trace_id" in row:
            row["trace_id"] = row["trace_id"][:_DIGITS]
    more = [f"the first {len(rows)}; --limit 0 shows all"] if table.num_rows > len(rows) else []
    if runs and "path" in names:
        more.append("`otel-rollout show` and `group` take PATH --run RUN; else the newest run with the path")
    more += [] if rows else [f"no rows{_unknown(engine) if columns is _WITH_TRAINING else ''}"]
    print_table(rows, names, [*more, f"from {location}"])


def _columns_of_runs(engine: Any) -> list[str]:
    """Return the columns that tell the table's runs apart; none if it has one run."""
    from otel_rollout.look.analysis.run_choice import Run
    from otel_rollout.table.row_set import dicts_of

    names = Run._fields
    sql = f"SELECT DISTINCT {', '.join(names)} FROM {views.RECORDED} WHERE validate IS NOT NULL"  # noqa: S608
    runs = dicts_of(engine.run(f"{sql} AND score_name IS NULL"))
    values = {name: {run[name] for run in runs} for name in names}
    if len(values["run_id"]) == len(runs) > 1:
        return ["run_id"]
    return [name for name in names if len(values[name]) > 1]


def _unknown(engine: Any) -> str:
    """Return that no trainer has scored a trajectory; nothing if one has."""
    is_known = engine.run("SELECT trace_id FROM training WHERE has_outcome LIMIT 1").num_rows
    return "" if is_known else "; no score says what training made of a trajectory (docs/training.md)"


@contextmanager
def ended_by_ctrl_c(is_wanted: bool) -> Iterator[None]:
    """Let Ctrl-C end the process at once: Python's handler would wait until the engine has ended the query.

    Args:
        is_wanted: whether Python has no private directory to remove then: a spool's table, a Parquet file.
    """
    usual = signal.getsignal(signal.SIGINT)
    if not is_wanted or usual is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _format(text: str, output: Path | None) -> Format:
    """Return the format that ``--format`` names."""
    from otel_rollout.base.suggest import did_you_mean
    from otel_rollout.table.select import QueryError

    found: Format | None = next((name for name in FORMATS if name == text), None)
    if found is None:
        raise QueryError(f"There is no format {text!r}.{did_you_mean(text, FORMATS)} {', '.join(FORMATS)}.")
    if found == "table" and output is not None:
        raise QueryError("A table is printed; to write a file, add --format csv, json or parquet.")
    return found


@contextmanager
def errors_reported() -> Iterator[None]:
    """End the command with one line and status 2 if something cannot be shown, asked or written."""
    from otel_rollout.base.printable import printable
    from otel_rollout.look.errors import ViewerError
    from otel_rollout.table.errors import TableError

    try:
        yield
    except (TableError, ViewerError) as error:
        typer.echo(printable(str(error)), err=True)
        raise typer.Exit(2) from error
    except ModuleNotFoundError as error:
        if error.name not in ("deltalake", "arro3"):
            raise
        typer.echo("This command needs deltalake: pip install 'otel-rollout[delta]'", err=True)
        raise typer.Exit(2) from error
