"""Implement the command ``export``: write trajectories of any source in the formats of other tools."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer

from otel_rollout.base.printable import printable
from otel_rollout.cli.dumps import reading
from otel_rollout.cli.page_output import writing
from otel_rollout.cli.show import FromOption, spans_of
from otel_rollout.cli.sources import as_table
from otel_rollout.cli.table import RunOption, Selected, SortOption, WhereOption, command_of
from otel_rollout.look.conversation import atif, training_data
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.formatting import counted
from otel_rollout.look.conversation.summary import Summary
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.sources.table_source import conversations_in
from otel_rollout.table.query import Engine
from otel_rollout.table.schema import has_time

_HELP: Final = "Write trajectories as ATIF, or as chat messages in JSON lines."
_ATIF, _MESSAGES = "atif", "messages"
_FACTS: Final = ("step", "sample_index", "rollout_n", "validate", "reward", "reward_label")
"""Columns of a trajectory that a line of messages has by the same names."""
_IN_TEXT: Final = {"step": "step_text", "rollout_n": "rollout_text"}
"""Column of a number → the column of a value that is none."""
_IN_NO_NAME: Final = re.compile(r"[^\w.-]+")
_MAX_NAME: Final = 60
"""Maximum characters of a name, which may have four bytes each."""
_TRACE_DIGITS: Final = 7
"""Digits of a trace id in the name of a trial: Harbor has seven letters there."""
_AT_ONCE: Final = 200
"""Trajectories that are read with one query."""


def _export(
    view: str,
    *,
    from_: FromOption = None,
    run: RunOption = None,
    where: WhereOption = None,
    sort: SortOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum trajectories.")] = None,
    format_: Annotated[str, typer.Option("--format", help=f"{_ATIF} or {_MESSAGES}. \\[required]")] = "",
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            help=f"A new directory for {_ATIF}, a new file for {_MESSAGES}. \\[default: JSON lines to "
            "standard output]",
        ),
    ] = None,
    **given: Any,
) -> None:
    """Write the trajectories that the options describe."""
    if format_ not in (_ATIF, _MESSAGES):
        raise ViewerError(f"--format {format_ or 'is missing'}: name {_ATIF} or {_MESSAGES}.")
    if to is not None and _holds_something(to):
        kind = "directory" if format_ == _ATIF else "file"
        raise ViewerError(f"{to} exists, and nothing in it is replaced: name a new {kind} with --to.")
    with as_table(from_, spans=spans_of) as (store, _), writing("export"):
        columns = ", ".join(["trace_id", *_FACTS, *_IN_TEXT.values(), "error_message"])
        selected = Selected(store, view, given, run, where, sort, columns)
        engine = selected.engine
        rows = engine.dicts(selected.checked(), limit)
        if not rows:
            raise ViewerError(selected.nothing())
        conversations = conversations_in(engine, (row["trace_id"] for row in rows), _AT_ONCE)
        if format_ == _MESSAGES:
            number = _write_lines(_examples(engine, rows), to)
        elif to is None:
            number = _write_lines(map(atif.document_of, conversations), None)
        else:
            number = _write_trials(conversations, to)
    if to is not None:
        typer.echo(f"{counted(number, 'trajectory')} written to {to}")


export = reading(command_of("trajectories", _HELP, _export))


def _holds_something(to: Path) -> bool:
    """Return whether a path is a file or directory with content, which an export must not replace."""
    return any(to.iterdir()) if to.is_dir() else to.is_file() and to.stat().st_size > 0


def _examples(engine: Engine, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a line of messages for each trajectory whose messages are known."""
    for example in training_data.examples(engine, rows):
        line = {name: example[name] for name in _FACTS}
        texts = {name: example[text] for name, text in _IN_TEXT.items() if line[name] is None}
        yield {**line, **texts, "error": example["error_message"], "messages": example["messages"]}


def _write_trials(conversations: Iterator[Conversation], to: Path) -> int:
    """Write each trajectory as Harbor writes a trial: its document, with the reward beside it."""
    number = 0
    for conversation in conversations:
        summary = conversation.summary
        name = f"{_name(summary.path)}__{summary.trace_id[:_TRACE_DIGITS]}"
        trial = to / _name(summary.experiment) / name
        (trial / "agent").mkdir(parents=True)
        _write_lines([atif.document_of(conversation)], trial / "agent/trajectory.json")
        _write_lines([_result_of(summary, name)], trial / "result.json")
        number += 1
    return number


def _result_of(summary: Summary, name: str) -> dict[str, Any]:
    """Return the object that Harbor writes beside a trial's document: reward, error and times."""
    rewards = {score.name: score.value for score in summary.scores if score.name == "reward"}
    result: dict[str, Any] = {
        "task_name": summary.path.rpartition("/")[0],
        "trial_name": name,
        "verifier_result": {"rewards": rewards},
        "exception_info": {"exception_type": summary.error_type, "exception_message": summary.error}
        if summary.error or summary.error_type
        else None,
    }
    if summary.seconds is not None and has_time(summary.start_ns):
        start = summary.start_ns / 1e9
        for field, seconds in (("started_at", start), ("finished_at", start + summary.seconds)):
            result[field] = datetime.fromtimestamp(seconds, UTC).isoformat()
    return result


def _name(text: str) -> str:
    """Return a text as a file name, without special characters and at most 60 characters long."""
    return _IN_NO_NAME.sub("-", text)[:_MAX_NAME].strip(".")


def _write_lines(records: Iterable[Mapping[str, Any]], to: Path | None) -> int:
    """Write JSON lines to a file, or to standard output; return their number.

    On a terminal, control characters become visible.
    """
    is_seen = to is None and sys.stdout.isatty()
    number = 0
    with nullcontext(sys.stdout.buffer) if to is None else to.open("wb") as file:
        for record in records:
            line = _json_of(record)
            file.write((printable(line) if is_seen else line).encode() + b"\n")
            number += 1
    return number


def _json_of(record: Mapping[str, Any]) -> str:
    """Return a record as JSON.

    Raises:
        ViewerError: a value of the record is nested too deeply.
    """
    try:
        return orjson.dumps(record).decode()
    except TypeError:  # nested more deeply than orjson writes
        try:
            return json.dumps(record, ensure_ascii=False)
        except RecursionError as error:
            raise ViewerError("A trajectory has a value that is nested too deeply to be written.") from error
