"""`otel-rollout import` brings spools and OTLP JSON into the table, each span once."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.cli import app
from otel_rollout.spool import layout
from tests.cli.command import COMMAND
from tests.viewer.test_conversation import line


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory of the test's own, where the table is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(*paths: object, code: int = 0) -> Result:
    ran = CliRunner().invoke(app, ["import", *map(str, paths), "--to", "delta"])
    assert ran.exit_code == code, ran.output
    return ran


def names() -> list[str]:
    """Return the name of each row of the table, also of a span that is in it twice."""
    table = otel_rollout.open_table("rollouts")
    files = ", ".join(f"'{file}'" for file in table.files())
    return [
        name for (name,) in table.duckdb().execute(f"SELECT name FROM read_parquet([{files}])").fetchall()
    ]


def trajectory(first: int, name: str) -> list[bytes]:
    """Return a root span and a model call of it, as a recorder writes them."""
    step = {semconv.STEP: 4}
    return [
        line(first, name, name, parent=0, kind="AGENT", attributes=step),
        line(first + 1, name, name, parent=first, attributes=step),
    ]


def written(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_import_repeated_adds_nothing(place: Path) -> None:
    """Spans that are in the table are counted, and left out; no copy stays."""
    file = written(place / "spans.jsonl", trajectory(1, "a"))
    assert "2 spans imported to the table at" in imported(file).stdout
    assert "0 spans imported to the table at" in (again := imported(file).stdout)
    assert "2 were there already" in again
    assert len(names()) == 2
    assert layout.node_directories(place / "spool") == []
    assert [row["step"] for row in otel_rollout.open_table("rollouts").steps] == [4]


def test_new_spans_of_a_file_that_grew_are_added(place: Path) -> None:
    """Files that have spans in common, in one command and in two."""
    first = written(place / "first.jsonl", trajectory(1, "a"))
    both = written(place / "both.jsonl", [*trajectory(1, "a"), *trajectory(11, "b")])
    printed = imported(first, both).stdout
    assert f"{first}: 2 spans imported" in printed
    assert f"{both}: 2 spans imported" in printed
    written(both, [*trajectory(11, "b"), *trajectory(21, "c")])
    assert "2 spans imported" in imported(both).stdout
    assert len(names()) == 6


def test_a_span_that_a_file_repeats_is_new_once(place: Path) -> None:
    """The count is that of the rows that the table gets."""
    lines = [*trajectory(1, "a"), *trajectory(11, "b")]
    file = written(place / "spans.jsonl", [*lines, *lines[:3]])
    assert "4 spans imported" in (told := imported(file).stdout)
    assert "3 were there already" in told
    assert len(names()) == 4


def test_imports_at_once_write_no_row_twice(place: Path) -> None:
    """Processes with spools of their own begin the table; each waits until the one before has ended."""
    lines = [line for number in range(500) for line in trajectory(2 * number + 1, f"t{number}")]
    file = written(place / "spans.jsonl", lines)
    command = [*COMMAND, "import", str(file), "--to", "delta"]
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, "OTEL_ROLLOUT_SPOOL_DIR": str(place / f"spool-{number}")},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    printed = sorted(process.communicate(timeout=200)[0].split()[1] for process in running)
    assert printed == ["0", "0", "1,000"]
    assert len(names()) == 1000


def test_path_without_spans_keeps_no_other_path_out(place: Path) -> None:
    """The empty path is named on one line, and is the reason of the exit status."""
    first = written(place / "first.jsonl", trajectory(1, "a"))
    (place / "empty").mkdir()
    last = written(place / "last.jsonl", trajectory(11, "b"))
    ran = imported(first, "empty", "missing.jsonl", last, code=2)
    assert f"{first}: 2 spans imported" in ran.stdout
    assert f"{last}: 2 spans imported" in ran.stdout
    empty, missing = ran.stderr.splitlines()
    assert empty.startswith("empty cannot be imported: empty holds no segments")
    assert missing == "missing.jsonl cannot be imported: No such file or directory"
    assert len(names()) == 4


def document(*spans: tuple[int, str], indent: int | None = None) -> str:
    """Return OTLP JSON of another program, with several spans."""
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "traceId": f"{7:032X}",
            "spanId": f"{number:016x}",
            "startTimeUnixNano": "1",
            "endTimeUnixNano": "2",
        }
        for number, name in spans
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": found}]}]}, indent=indent)


def test_turns_of_a_file_are_those_of_its_table(place: Path) -> None:
    """Of messages, too, each turn names the one that it continues, also where a context was edited."""
    said = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    edited = [*said[:1], {"role": "assistant", "content": "other"}, *said[2:]]
    contexts = [said[:1], said, [*edited, *said[1:]]]
    lines = [line(1, {}, {}, parent=0, kind="AGENT", attributes={semconv.STEP: 4})]
    lines += [line(n, {"messages": context}, {}) for n, context in enumerate(contexts, start=2)]
    file = written(place / "spans.jsonl", lines)
    imported(file)
    sql = "SELECT span_id, continues, shared FROM turns ORDER BY span_id"
    found = [
        CliRunner().invoke(app, ["query", sql, "--from", source, "--format", "csv"]).stdout.split()
        for source in (str(file), "rollouts")
    ]
    ids = [f"{n:016x}" for n in (2, 3, 4)]
    assert found[0][1:] == [f"{ids[0]},,", f"{ids[1]},{ids[0]},1", f"{ids[2]},{ids[0]},1"]
    assert found[1] == found[0]


@pytest.mark.parametrize("indent", [None, 2])
def test_document_of_another_program_is_imported(place: Path, indent: int | None) -> None:
    """On one line or several; of its spans only those that are new."""
    file = place / "traces.json"
    file.write_text(document((1, "a"), (2, "b"), indent=indent))
    assert "2 spans imported" in imported(file).stdout
    file.write_text(document((2, "b"), (3, "c"), indent=indent))
    assert "1 span imported" in imported(file).stdout
    assert sorted(names()) == ["a", "b", "c"]


def test_spool_of_a_run_is_imported(place: Path, demo_table: Path) -> None:
    """Its table has the same trajectories as the table to which the run was delivered."""
    spool = demo_table.with_name("spool")
    assert "1,278 spans imported" in imported(spool).stdout
    assert "0 spans imported" in imported(spool).stdout
    columns = ("path", "state", "turns", "tool_calls", "tool_errors", "tokens_in", "tokens_out", "reward")
    theirs, ours = (
        otel_rollout.open_table(str(path)).trajectories.sort("path").select(*columns).dicts()
        for path in (demo_table, place / "rollouts")
    )
    assert ours == theirs


def test_line_that_is_no_span_is_named(place: Path) -> None:
    """The other lines are in the table; the status is 1, and the line stays on disk."""
    file = written(place / "spans.jsonl", [*trajectory(1, "a"), b"not a span"])
    ran = imported(file, code=1)
    assert "lacks up to 2 spans of it. Lines pending: 0, rejected: 1." in ran.stderr
    assert "otel-rollout forward --spool" in ran.stderr
    assert len(names()) == 2


def test_table_of_the_variable_is_the_target(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the exporter."""
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(place / "elsewhere"))
    imported(written(place / "spans.jsonl", trajectory(1, "a")))
    assert len(otel_rollout.open_table("elsewhere").spans) == 2
    assert not (place / "rollouts").exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("missing.jsonl", "No such file"),
        ("empty", "holds no segments"),
        ("mlflow:sqlite:///missing.db", "There is no database"),
    ],
)
def test_source_that_cannot_be_read_is_one_line(place: Path, source: str, words: str) -> None:
    """No table is begun, and no copy stays."""
    (place / "empty").mkdir()
    ran = imported(source, code=2)
    assert words in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert not (place / "rollouts").exists()
    assert layout.node_directories(place / "spool") == []


def test_another_exporter_is_refused(place: Path) -> None:
    """Its command is `replay`."""
    ran = CliRunner().invoke(app, ["import", "x", "--to", "mlflow"])
    assert ran.exit_code == 2
    assert "replay" in ran.output
