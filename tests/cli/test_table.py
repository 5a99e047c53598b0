"""`otel-rollout list`, `groups`, `steps` and `query` ask a table, and a spool alike."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner, Result

from otel_rollout import doctor
from otel_rollout.account.report import ExporterCount, Report, StepCount
from otel_rollout.base import semconv
from otel_rollout.cli import app, report_output
from otel_rollout.doctor import Diagnosis, DoctorFinding, Verdict
from otel_rollout.look import fitted_table
from otel_rollout.look.conversation.formatting import duration
from otel_rollout.look.fitted_table import TableColumn, fitted
from otel_rollout.otlp.scan import StepKey
from otel_rollout.spool import files
from tests.cli.command import COMMAND, ON_A_TERMINAL
from tests.table.generated_table import Shape
from tests.table.tables import generated, root, row, score, written
from tests.viewer.test_conversation import line
from tests.waiting import wait_for


def run(*arguments: object, code: int = 0) -> Result:
    ran = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert ran.exit_code == code, ran.output
    return ran


def rows(printed: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "table"
    generated(path, Shape(160, per_step=16))
    return path


@pytest.mark.parametrize("is_terminal", [True, False])
def test_sentence_breaks_between_words_on_a_terminal_alone(is_terminal: bool) -> None:
    """No word is cut, however long it is; in a pipe, a sentence is a line."""
    console = Console(width=20, force_terminal=is_terminal, file=io.StringIO())
    sentence = f"All of it is in the table at /data/{'x' * 30}, in a file."
    fitted_table.print_sentence(console, Text(sentence))
    printed = console.file.getvalue()
    assert " ".join(printed.split()) == sentence
    assert max(map(len, printed.splitlines())) == (37 if is_terminal else len(sentence))


def test_command_in_a_sentence_is_whole() -> None:
    """It can be pasted from a terminal, if it fits on a line: between backquotes, or after a colon."""
    console = Console(width=40, force_terminal=True, file=io.StringIO())
    sentence = "Try this: `otel-rollout show 1/2/3 --wide`. Or this: otel-rollout list --failed -o abcd. Go."
    sentence += " Or: pip install 'otel-rollout[mlflow]' (for some: [mlflow-local])."
    fitted_table.print_sentence(console, Text(sentence))
    assert console.file.getvalue().splitlines() == [
        "Try this:",
        "`otel-rollout show 1/2/3 --wide`. Or",
        "this:",
        "otel-rollout list --failed -o abcd. Go.",
        "Or: pip install 'otel-rollout[mlflow]'",
        "(for some: [mlflow-local]).",
    ]


def test_messages_break_between_words_on_a_terminal_alone(table: Path) -> None:
    """An error and the note of an empty list are one line in a pipe."""
    for arguments, code in (
        (["list", "--from", "mlflow"], 2),
        (["list", "--from", table, "--tool", "a-long-name-of-a-tool"], 0),
    ):
        piped = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)
        message, *_ = (piped.stderr or piped.stdout).splitlines()
        lines = on_a_terminal(*arguments, columns=60, code=code).splitlines()
        beginning = next(count for count in range(len(lines) + 1) if " ".join(lines[:count]) == message)
        assert beginning > 1
        assert max(map(len, lines[:beginning])) <= 60


def test_list_filters_and_sorts(table: Path) -> None:
    """The rows meet every filter, in the order that is asked for."""
    printed = run(
        "list", "--from", table, "--step", "1-3", "--reward", "<0.5", "--sort", "-reward", "--limit", 5
    ).output  # fmt: skip
    found = rows(printed)
    rewards = [float(each[2]) for each in found]
    assert len(found) == 5
    assert rewards == sorted(rewards, reverse=True)
    assert all(int(each[0].split("/")[0]) <= 3 for each in found)
    assert rewards[0] < 0.5
    assert "the first 5; --limit 0 shows all" in printed
    assert f"from {table}" in printed


def test_list_rounds_seconds(table: Path) -> None:
    """A duration has a unit and few digits in a printed table, and all of them in CSV."""
    seconds = [each[4] for each in rows(run("list", "--from", table, "--limit", 20).output)]
    listed = run("list", "--from", table, "--limit", 20, "--format", "csv").output
    exact = [each["seconds"] for each in csv.DictReader(io.StringIO(listed))]
    assert [duration(float(each)) for each in exact] == seconds
    assert all(each.endswith((" ms", " s")) for each in seconds)


def test_list_prints_a_page(table: Path) -> None:
    """Fifty rows, unless told otherwise."""
    assert len(rows(run("list", "--from", table).output)) == 50
    assert len(rows(run("list", "--from", table, "--limit", 0).output)) == 160


def test_columns_are_those_that_the_terminal_has_room_for(table: Path) -> None:
    """At 80: path, reward, state, turns, tool errors, seconds; what is left out is named. A pipe has all."""
    shown = on_a_terminal("list", "--from", table, "--limit", 2, columns=80)
    assert max(len(line) for line in shown.splitlines() if line[0] in "┏┃┡│└") <= 80
    headings = " ".join(shown.split("│", 1)[0].replace("┃", " ").split())
    for name in ("path", "reward", "state", "seconds", "turns", "errors"):
        assert name in headings
    assert "no room for trace_id, " in shown
    whole = on_a_terminal("groups", "--from", table, "--limit", 2, columns=200)
    assert "reward_mean" in whole.split("│", 1)[0].replace("┃", " ").split()
    assert "no room" not in whole
    piped = subprocess.run(
        [*COMMAND, "list", "--from", str(table)],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )
    assert "tokens_out" in piped.stdout.splitlines()[1]


COMMANDS_OF_TABLES = [
    ["list"],
    ["list", "--sort", "-mismatch"],
    ["list", "--columns", "path,trace_id,error_type,tokens_in,state"],
    ["groups"],
    ["steps"],
    ["query", "SELECT path, trace_id, error_message, tokens_in FROM trajectories"],
    ["report"],
    ["timeline"],
    ["show"],
]
LONG = "an error with so many words that no terminal shows them beside the other columns of a table"


@contextlib.contextmanager
def swept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sequence[TableColumn]]]:
    """Yield the tables that are printed in the block; afterwards, print each at every width."""
    tables: list[Sequence[TableColumn]] = []
    printed: list[tuple[Any, ...]] = []

    def remembered(columns: Sequence[TableColumn], *others: Any, **named: Any) -> list[Table | Text]:
        tables.append(columns)
        printed.append((columns, others[1:], named))
        return fitted(columns, *others, **named)

    with monkeypatch.context() as patched:
        for module in (fitted_table, report_output):
            patched.setattr(module, "fitted", remembered)
        yield tables
    for columns, others, named in printed:
        for width in (*range(60, 200, 3), 80, 100, 140, 200):
            table, *_ = fitted(columns, width, *others, **named)
            console = Console(width=width, file=io.StringIO())
            console.print(table, crop=False)
            lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
            assert len({cell_len(line) for line in lines}) == 1
            assert cell_len(lines[0]) <= width
            assert isinstance(table, Table)
            assert table.columns


def test_no_frame_breaks_from_60_to_200_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a table is as wide as its frame, and none is wider than the terminal."""
    path = tmp_path / "table"
    failed = [
        root(f"{n}", rollout_n=n, status="error", error_type=LONG, error_message=LONG) for n in range(3)
    ]
    calls = [row(f"{n}", "b", f"a{n}", rollout_n=n, kind="TOOL", tool_name="calculator") for n in range(3)]
    other = root("7", rollout_n=3, validate=True, run_id="a-run-with-a-name-of-many-characters")
    written(path, [*failed, *calls, other, score("1", "c", 1 / 3)])
    for command in COMMANDS_OF_TABLES:
        with swept(monkeypatch) as tables:
            run(*command, "--from", path)
        assert tables, command


def test_status_of_several_runs_explains_its_counts_once() -> None:
    """What the counts add up to stands below the last table, also of the counts per step."""
    reported = replace(Report.empty(), exporters={"mlflow": ExporterCount()}, directory="run/node")
    console = Console(width=80, file=io.StringIO())
    report_output.show([reported] * 3, console, steps=True)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("run/node") == 3
    for explained in ("started = recorded", "recorded = delivered", "retried: batches sent again"):
        assert shown.count(explained) == 1 + (explained == "recorded = delivered")
    told = [line.partition(" = ")[0] for line in shown.splitlines() if line.startswith("each ")]
    assert told == ["each step: started", "each step: recorded", "each exporter: recorded"]
    assert shown.endswith("retried: batches sent again\n")


def test_tables_of_counts_and_findings_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` leaves out columns of zeros first, `doctor` breaks at blanks; all of it is there."""
    steps = {StepKey("1", False): StepCount(recorded=10**9, delivered=7, dropped={"spool_limit": 3})}
    exporters = {
        "mlflow": ExporterCount(delivered=10**9, retried=2),
        "another-exporter": ExporterCount(),
    }
    reported = replace(
        Report.empty(), exporters=exporters, recorded=10**9, count_steps=lambda: steps, directory="run/node"
    )
    findings = [DoctorFinding("tracing", Verdict.FAIL, LONG, where=f"node {n}") for n in range(2)]
    console = Console(width=60, file=io.StringIO(), force_terminal=True, color_system=None)
    with swept(monkeypatch) as tables:
        report_output.show([reported], console, steps=True)
        doctor.show(Diagnosis(tuple(findings)), console)
    assert len(tables) == 2
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "no room for rejected, sampled out" in shown
    assert "retried" in shown.split("no room")[0]
    words = re.sub(r"[^a-z]+", " ", shown)
    assert "an error with so many words that no terminal shows them beside the other columns" in words


def on_a_terminal(*arguments: object, columns: int, code: int = 0) -> str:
    """Return what the command prints on a terminal of so many columns."""
    master, slave = pty.openpty()
    command = [*COMMAND, *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=slave, stderr=slave, env=environment, close_fds=True) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while read := os.read(master, 1 << 16):
                shown += read
        assert process.wait(60) == code
    os.close(master)
    return re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).replace("\r", "")


def test_failures_are_filtered(tmp_path: Path) -> None:
    """By the trajectory's end and by its tools' errors; the error's class is shown."""
    path = tmp_path / "table"
    written(
        path,
        [
            root("1", rollout_n=0),
            root("2", rollout_n=1, status="error", error_type="ValueError"),
            row("3", "b", "a3", rollout_n=2, kind="TOOL", status="error"),
        ],
    )
    assert [each[0] for each in rows(run("list", "--from", path, "--failed").output)] == ["1/7/1"]
    assert "ValueError" in run("list", "--from", path, "--failed").output
    assert [each[0] for each in rows(run("list", "--from", path, "--running").output)] == ["1/7/2"]
    assert [each[0] for each in rows(run("list", "--from", path, "--tool-error").output)] == ["1/7/2"]
    assert [each[0] for each in rows(run("list", "--from", path, "--where", "rollout_n = 1").output)] == [
        "1/7/1"
    ]


def test_reward_that_is_no_number_is_listed(tmp_path: Path) -> None:
    """A text, a truth value and NaN are in a column of their own, which a list of numbers does not have."""
    path = tmp_path / "table"
    labels = {"1": (None, "good"), "2": (1.0, "True"), "3": (None, "nan"), "4": (0.5, None)}
    scored = [
        score(trace, "b", value, score_label=label, rollout_n=int(trace))
        for trace, (value, label) in labels.items()
    ]
    written(path, [root(trace, rollout_n=int(trace)) for trace in labels], scored)
    found = [each[:4] for each in rows(run("list", "--from", path).output)]
    assert [(name, reward, label) for name, _, reward, label in found] == [
        ("1/7/1", "", "good"), ("1/7/2", "1", "True"), ("1/7/3", "", "nan"), ("1/7/4", "0.5", "")
    ]  # fmt: skip
    assert "reward_label" not in run("list", "--from", path, "--reward", "0.5").output


def test_list_without_rows_says_which_steps_there_are(table: Path) -> None:
    """A step that nobody recorded is answered with those that are there; so is no other condition."""
    printed = run("list", "--from", table, "--step", 99).output
    assert printed.splitlines()[0] == "no trajectory: there are steps 1–10"
    assert run("groups", "--from", table, "--step", 99).output.startswith("no group: there are steps 1–10\n")
    assert run("list", "--from", table, "--step", 1, "--reward", ">2").output.startswith(
        "no trajectory is like that\n"
    )


def test_list_with_an_unknown_tool_names_those_that_there_are(table: Path) -> None:
    """One line has the nearest name and all names; of a tool that is there, nothing is said."""
    for option in ("--tool", "--failed-tool"):
        printed = run("list", "--from", table, option, "pyton").output
        assert printed.splitlines()[0] == (
            "There is no tool 'pyton'. Did you mean 'python'? Tools: calculator, python, search."
        )
    printed = run("list", "--from", table, "--tool", "python", "--reward", ">9").output
    assert printed.startswith("no trajectory is like that\n")


@pytest.mark.parametrize("option", ["--sort", "--columns", "--where"])
def test_a_part_of_a_columns_name_is_answered_with_the_column(table: Path, option: str) -> None:
    """Each option names the column that was meant, as of other misspellings."""
    said = {"--sort": "-spread", "--columns": "spread", "--where": "spread > 0"}[option]
    printed = run("groups", "--from", table, f"{option}={said}", code=2).output
    assert "There is no column 'spread'. Did you mean 'reward_spread'? Columns: " in printed


def test_list_says_that_failures_of_tools_are_unknown(tmp_path: Path) -> None:
    """No status of a call is no success: an empty list would read as if no call had failed."""
    path = tmp_path / "table"
    of_tools = {"search": None, "python": "ok"}
    calls = [
        row("1", name[:1], "a1", kind="TOOL", tool_name=name, status=status)
        for name, status in of_tools.items()
    ]
    written(path, [root("1"), *calls])
    unknown = "no trajectory: the source does not tell how its tool calls ended\n"
    assert run("list", "--from", path, "--failed-tool", "search").output.startswith(unknown)
    for known in (("--failed-tool", "python"), ("--tool-error",)):
        assert run("list", "--from", path, *known).output.startswith("no trajectory is like that\n")


def test_step_may_be_a_text_or_none(tmp_path: Path) -> None:
    """The text of a step chooses its trajectories and groups; ``-`` those without a step, or of this text."""
    texts = {"2": "warm-up", "3": "0.5", "4": "warm", "5": None}
    path = tmp_path / "table"
    rows_of_texts = [root(trace, step=None, step_text=text) for trace, text in texts.items()]
    validation = root("6", step=None, step_text="warm-up", validate=True)
    dash = root("7", step=None, step_text="-", sample_index="8")
    written(path, [root("1"), *rows_of_texts, validation, dash])
    for step, names in {
        "warm-up": ["warm-up/7", "validation/warm-up/7"],
        "0.5": ["0.5/7"],
        "-": ["-/8", "-/7"],
        "1,warm": ["1/7", "warm/7"],
    }.items():
        for command, end in (("list", "/0"), ("groups", "")):
            printed = run(command, "--from", path, "--step", step).output
            assert [each[0] for each in rows(printed)] == [name + end for name in names], printed
    no_row = root("9", step=8, sample_index=None)
    written(path, [no_row, root("8", step=8, sample_index="-")])
    assert len(rows(run("list", "--from", path, "--sample", "-").output)) == 2, "as --step takes a dash"
    nothing = run("list", "--from", path, "--step", "cool-down").output
    assert nothing.startswith(
        "no trajectory: there are steps 1, 8, -, 0.5, warm, warm-up and those without a number\n"
    )


def test_groups_name_the_run_that_group_and_show_open(tmp_path: Path) -> None:
    """Whatever is shown; without the name, both open the run that began last."""
    path = tmp_path / "table"
    older, newer = {"run_id": "run-a"}, {"run_id": "run-b"}
    ended, running = root("1", **older), row("2", "b", "a2", kind="LLM", **newer)
    late = [row("1", "c", "a1", kind="TOOL", **older), score("1", "d", 0.5, **older)]
    written(path, [ended, running, *late])
    for options in (["--limit", "1"], ["--run", "run-a"], ["--reward", "0.5"]):
        printed = run("groups", "--from", path, *options).output
        ((named, group, *_),) = rows(printed)
        assert (named, group) == ("run-a", "1/7")
        assert f"open the first: otel-rollout group 1/7 --run run-a --from {path}\n" in printed
    for command, opening in (("list", "show 1/7/0"), ("groups", "group 1/7")):
        printed = run(command, "--from", path, "--reward", "0.5", "--columns", "sample_index").output
        assert f"open the first: otel-rollout {opening} --run run-a --from {path}\n" in printed
        assert rows(printed) == [["7"]]
    for command in (["group", "1/7"], ["show", "1/7"], ["show", "1/7/0"], ["compare", "1/7/0", "1/7/0"]):
        assert "run run-a" in words(run(*command, "--from", path, "--run", "run-a").output)
        assert "run run-b" in words(run(*command, "--from", path).output)


def words(text: str) -> str:
    return " ".join(text.split())


def test_groups_that_teach_nothing_are_listed(tmp_path: Path) -> None:
    """All rewards of such a group are equal; a group of one reward has no spread to speak of."""
    path = tmp_path / "table"
    rewards = {"1": ("3", 1.0), "2": ("3", 1.0), "3": ("4", 1.0), "4": ("4", 0.0), "5": ("5", 1.0)}
    lines = []
    for n, (sample, reward) in rewards.items():
        of = {"rollout_n": int(n), "sample_index": sample}
        lines += [root(n, **of), score(n, f"d{n}", reward, **of)]
    written(path, lines)
    assert [each[0] for each in rows(run("groups", "--from", path, "--no-spread").output)] == ["1/3"]


def test_runs_of_one_id_are_named_by_their_experiment(tmp_path: Path) -> None:
    """A job that resumes under one run id may have another name."""
    path = tmp_path / "table"
    written(path, [root("1", experiment="first"), root("2", experiment="second")])
    printed = run("groups", "--from", path).output
    assert [each[:2] for each in rows(printed)] == [["first", "1/7"], ["second", "1/7"]]
    assert "first" in run("group", "1/7", "--from", path, "--run", "first").output
    assert "second" in run("show", "1/7", "--from", path, "--run", "second").output


@pytest.mark.parametrize("name", ["run-1", "first", "latest"])
def test_a_run_is_named_by_its_id_or_its_experiment(tmp_path: Path, name: str) -> None:
    """`--run` takes what `report --run` takes."""
    path = tmp_path / "table"
    identity = {"run_id": "run-1", "experiment": "first"}
    written(
        path, [root("1", **identity, start_ns=2), root("2", run_id="run-2", experiment="second", start_ns=1)]
    )
    listed = json.loads(run("list", "--from", path, "--run", name, "--format", "json").stdout)
    assert [each["run_id"] for each in listed] == ["run-1"]
    assert [len(rows(run(each, "--from", path, "--run", name).output)) for each in ("groups", "steps")] == [
        1,
        1,
    ]
    refused = run("list", "--from", path, "--run", "run-9", code=2)
    assert "There is no run 'run-9'." in refused.output


def test_groups_and_steps_are_listed(table: Path) -> None:
    """Each with its mean reward."""
    assert len(rows(run("groups", "--from", table, "--step", 1).output)) == 2
    assert [each[0] for each in rows(run("steps", "--from", table, "--limit", 3).output)] == ["1", "2", "3"]


def test_columns_that_are_named_are_shown(table: Path) -> None:
    """In their order, in a table and in a file; a column that is sorted by has room before others."""
    printed = run("list", "--from", table, "--columns", "reward,sample_index,path", "--limit", 1).output
    assert [each.strip() for each in printed.splitlines()[1].strip("┃").split("┃")] == [
        "reward",
        "sample_index",
        "path",
    ]
    as_csv = run("steps", "--from", table, "--columns", "step,reward_std", "--format", "csv").output
    assert as_csv.splitlines()[0] == "step,reward_std"
    refused = run("list", "--from", table, "--columns", "rewrd", code=2).stderr
    assert refused.startswith("There is no column 'rewrd'. Did you mean 'reward'?")
    narrow = on_a_terminal("list", "--from", table, "--sort", "-tokens_in", "--limit", 1, columns=60)
    assert (
        "tokens_in" in narrow.split("│", 1)[0].replace("_\n", "_") or "in" in narrow.split("│", 1)[0].split()
    )


def test_query_prints_what_it_selects(table: Path) -> None:
    """Columns and rows as selected, in its order."""
    sql = "SELECT step, count(*) AS number FROM trajectories GROUP BY step ORDER BY step DESC LIMIT 2"
    assert rows(run("query", sql, "--from", table).output) == [["10", "16"], ["9", "16"]]


@pytest.mark.parametrize("command", [["list"], ["query", "SELECT * FROM trajectories ORDER BY path"]])
def test_formats_hold_the_same_rows(table: Path, tmp_path: Path, command: list[str]) -> None:
    """CSV, JSON and Parquet have all columns and rows."""
    as_csv = run(*command, "--from", table, "--format", "csv").stdout
    as_json = run(*command, "--from", table, "--format", "json").stdout
    file = tmp_path / "rows.parquet"
    run(*command, "--from", table, "--format", "parquet", "--output", file)
    from_csv = list(csv.DictReader(io.StringIO(as_csv, newline="")))
    from_json = json.loads(as_json)
    from_parquet = parquet.read_table(file).to_pylist()
    assert len(from_csv) == len(from_json) == len(from_parquet) == 160
    assert [each["trace_id"] for each in from_csv] == [each["trace_id"] for each in from_json]
    assert [each["trace_id"] for each in from_json] == [each["trace_id"] for each in from_parquet]
    assert list(from_csv[0]) == list(from_json[0]) == list(from_parquet[0])
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("date '2026-01-02'", "2026-01-02"),
        ("time '10:00'", "10:00:00"),
        ("CAST('1.50' AS DECIMAL(10, 2))", "1.50"),
        ("x'00ff'", "00ff"),
        ("make_array(date '2026-01-02')", ["2026-01-02"]),
        ("CAST('NaN' AS DOUBLE)", "nan"),
    ],
)
def test_value_that_json_lacks_is_text(table: Path, value: str, written: object) -> None:
    """CSV, and the table on a terminal, show the same."""
    command = ["query", f"SELECT {value} AS a", "--from", table]
    assert json.loads(run(*command, "--format", "json").stdout) == [{"a": written}]
    (found,) = csv.DictReader(io.StringIO(run(*command, "--format", "csv").stdout, newline=""))
    assert found["a"] == (written if isinstance(written, str) else json.dumps(written))
    assert "2026-01-02" in str(written) or rows(run(*command).stdout) == [[written]]


@pytest.mark.parametrize("format_", ["table", "csv", "json"])
def test_interval_is_one_line(table: Path, format_: str) -> None:
    """Not a panic of Arrow's library."""
    ran = run("query", "SELECT INTERVAL '1 day' AS a", "--from", table, "--format", format_, code=2)
    assert ran.stderr == "Column 'a' is an interval: write CAST(… AS VARCHAR) to show it.\n"


def catches_ctrl_c(pid: int) -> bool:
    """Return whether the process has a handler of Ctrl-C."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGINT - 1)


def test_ctrl_c_ends_a_long_query(table: Path) -> None:
    """The engine lets no handler of Python run before its query has ended."""
    sql = "SELECT max(a.value + b.value) FROM range(1, 10000000) AS a CROSS JOIN range(1, 10000000) AS b"
    process = subprocess.Popen(
        [*ON_A_TERMINAL, "query", sql, "--from", str(table)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_for(lambda: catches_ctrl_c(process.pid))
        wait_for(lambda: not catches_ctrl_c(process.pid))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
    finally:
        process.kill()
        process.communicate()


def test_spool_is_asked_like_a_table(tmp_path: Path) -> None:
    """Its spans become a table for the time of the command."""
    file = tmp_path / "spans.jsonl"
    step = {semconv.STEP: 4}
    spans = [line(1, "a", "b", parent=0, kind="AGENT", attributes=step), line(2, "a", "b", attributes=step)]
    file.write_bytes(b"\n".join(spans))
    found = rows(run("steps", "--from", file).output)
    assert [[each[0], *each[2:4]] for each in found] == [["4", "1", "0"]]


def test_table_of_the_environment_is_the_default(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable names it; else the directory ``rollouts`` beside the program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(table))
    assert len(rows(run("steps").output)) == 10
    monkeypatch.delenv("OTEL_ROLLOUT_DELTA_URI")
    written(tmp_path / "rollouts", [root("1"), score("1", "b", 0.5)])
    assert rows(run("steps").output)[0][:3] == ["1", "1", "1"]
    assert "1/7/0" in run("show", "1/7/0").output


def test_missing_table_of_a_variable_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is nowhere in the command; one that an option gives needs no origin. A remedy follows."""
    remedy = "A run with OTEL_TRACES_EXPORTER=delta writes one, ten seconds after it begins."
    missing = f"There is no table at {tmp_path}/none"
    for address in (f"{tmp_path}/none", f"file://{tmp_path}/none"):
        monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", address)
        for command in (("list",), ("report",), ("table", "compact")):
            assert run(*command, code=2).stderr == f"{missing} (OTEL_ROLLOUT_DELTA_URI). {remedy}\n"
    shown = run("list", "--from", f"file://{tmp_path}/other", code=2).stderr
    assert shown.endswith(f"/other. {remedy}\n")


def test_directory_without_a_table_says_what_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a table nor a spool: one line names both places."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTEL_ROLLOUT_DELTA_URI", raising=False)
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(tmp_path / "none"))
    said = run("list", code=2).stderr
    assert said.startswith(f"There is no rollout table at ./rollouts, and no spool at {tmp_path}/none. ")
    assert "OTEL_TRACES_EXPORTER=mlflow,delta" in said
    assert said.count("\n") == 1


def test_directory_without_a_table_names_the_table_of_the_newest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool that is tried next has no spans, but knows where they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTEL_ROLLOUT_DELTA_URI", raising=False)
    table = tmp_path / "else where"
    delta = json.dumps({"delta": {"uri": str(table)}})
    program = [sys.executable, "-m", "tests.launch.programs.record_then", delta]
    monkeypatch.setenv("OTEL_ROLLOUT_KEEP", "false")
    subprocess.run(program, check=True)
    wait_for(lambda: not files.segments_below(tmp_path / "spool"), what="removal of the segments")
    no_table = "There is no rollout table at ./rollouts. "
    for command in ("steps", "report", "show", "list", "view"):
        said = run(command, code=2).stderr
        assert said == f"{no_table}The newest run was delivered to the table at {table}: --from '{table}'\n"
    shutil.rmtree(table)
    assert run("list", code=2).stderr.startswith(f"{no_table}{tmp_path / 'spool'} holds no dump of rollouts")


def test_terminal_says_first_that_the_runs_are_those_of_the_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder without a table, the runs may be of any program; a pipe gets the rows alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTEL_ROLLOUT_DELTA_URI", raising=False)
    monkeypatch.setenv("OTEL_ROLLOUT_KEEP", "true")
    delta = json.dumps({"delta": {"uri": str(tmp_path / "elsewhere")}})
    subprocess.run([sys.executable, "-m", "tests.launch.programs.record_then", delta], check=True)
    said = f"No rollout table at ./rollouts: this is the spool {tmp_path / 'spool'}."
    assert on_a_terminal("steps", columns=200).startswith(f"{said}\n")
    assert said not in run("steps").output


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Escape sequences and markup from names and errors control nothing."""
    hostile = "\x1b[31m[bold]\u202ered\n"
    written(tmp_path / "table", [root("1", sample_index=hostile, status="error", error_type=hostile)])
    for command in (["list"], ["groups"], ["query", "SELECT error_type FROM trajectories"]):
        printed = run(*command, "--from", tmp_path / "table").output
        assert "\x1b" not in printed
        assert "\u202e" not in printed
        assert "␛[31m[bold]" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "--format", "xml"], "There is no format 'xml'."),
        (["list", "--format", "table", "--output", "x"], "A table is printed"),
        (["steps", "--reward", "one"], "--reward 'one' cannot be read"),
        (["list", "--sort", "rewrd"], "There is no column 'rewrd'. Did you mean 'reward'?"),
        (["list", "--where", "rewrd > 1"], "There is no column 'rewrd'. Did you mean 'reward'?"),
        (["list", "--where", "1=1) OR (1=1"], "The condition closes a parenthesis that it did not open."),
        (["list", "--where", "reward <"], "The SQL is wrong: Expected: an expression"),
        (
            ["list", "--step", "1-3", "--where", "reward < 1 ANDD turns > 1"],
            "found: ANDD, at line 1, column 12. Right is, for example, reward < 0.1 AND tool_errors > 0.",
        ),
        (
            ["query", "SELECT path FORM trajectories"],
            "found: trajectories, at line 1, column 18. Right is, for",
        ),
        (["query", "DROP TABLE spans"], "Only a SELECT can be run"),
        (["query", "SELECT * FROM stps"], "There is no view 'stps'. Did you mean 'steps'?"),
        (["query", "SELECT 1 AS a", "--format", "parquet", "--limit", "1"], "write LIMIT in the SELECT"),
        (["query", "SELECT 1 AS a", "--format", "csv", "--output", "/no/such/file"], "cannot be written"),
    ],
)
def test_mistake_is_one_line(table: Path, arguments: list[str], words: str) -> None:
    """The line goes to standard error, and the status is 2."""
    ran = run(*arguments, "--from", table, code=2)
    assert words in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("/no/such/place", "There is no file or directory /no/such/place."),
        (
            "mlflow",
            "This command reads tables, spools, dumps and files of OTLP. `otel-rollout import mlflow",
        ),
        ("s3://", "expected a directory, or s3://BUCKET/PATH"),
    ],
)
def test_source_that_cannot_be_read_is_one_line(source: str, words: str) -> None:
    """It names the source, and what to do."""
    ran = run("list", "--from", source, code=2)
    assert words in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
