"""Commands read a dump as they read a table."""

import json
import os
import re
import shlex

import pytest

from otel_rollout.look.errors import ViewerError
from tests.cli.command import run, run_here
from tests.dumps.reading import verl_line, write_lines
from tests.dumps.test_readers import EPISODE, LOOP
from tests.waiting import wait_for
from tests.web.served import Served, hrefs


@pytest.fixture(autouse=True)
def dump(tmp_path, monkeypatch):
    """A dump of two steps, and a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    for step in (2, 10):
        lines = [verl_line(number, step=step, output=LOOP) for number in range(4)]
        write_lines(tmp_path / f"run/rollouts/{step}.jsonl", lines)
    return tmp_path / "run"


def test_every_reading_command_opens_a_dump(dump):
    """Each command says in one line what was opened, and shows it."""
    opened = "verl rollout dump: 2 files, steps 2–10, 8 trajectories"
    commands = {
        "list": "10/1/1",
        "groups": "10/1",
        "steps": "0.5",
        "report": "0.5",
        "health --all": "reward_missing",
        "show 10/1/1": "10.jsonl:4",
        "show": "10/1/1",
        "group 10/1": "10/1/1",
        "compare 10/1/0 10/1/1": "model calls",
        "query 'SELECT count(*) AS number FROM turns'": "16",
    }
    for command, expected in commands.items():
        told = run_here(*shlex.split(command), "--from", dump)
        assert told.count(opened) == 1, command
        assert expected in told, command


@pytest.mark.parametrize("command", ["list", "report", "show", "export"])
def test_the_help_of_from_names_dumps(command):
    """A person who asks for help learns that a dump is read, and how its format is forced."""
    assert "FORMAT:PATH" in "".join(run_here(command, "--help").split())


def test_what_a_dump_does_not_say_is_unknown(dump):
    """Without times there is no timeline, and health judges nothing that no dump says."""
    assert "has no timeline" in run_here("timeline", "--from", dump, code=2)
    steps = _json("report", "--from", dump, "--json")["training"]
    assert {tool["seconds_mean"] for step in steps for tool in step["tools"]} == {None}
    health = _json("health", "--from", dump, "--json")
    found = {check["name"]: check["status"] for check in health["checks"]}
    for name in (
        *("tool_error_burst", "replies_truncated", "policy_lag", "slow_worker"),
        *("context_edited", "operations_outside"),
    ):
        assert found[name] == "unobserved", name


def test_a_trajectory_without_times_has_counts_that_do_not_claim_a_duration(dump):
    """Nobody knows how long it took."""
    told = run_here("show", "10/1/1", "--from", dump)
    assert re.search(r"^ *made +\d+ model calls?", told, re.MULTILINE)
    assert "took" not in told


def test_nothing_is_said_of_tool_errors_where_no_call_has_a_known_status(dump, opened):
    """A text does not say whether a tool failed: lists, report and comparison claim no number of errors."""
    found = opened(dump)
    for view in ("trajectories", "groups", "steps"):
        rows = found.rows(f"SELECT tool_errors FROM {view} WHERE tool_calls > 0")
        assert {row["tool_errors"] for row in rows} == {None}, view
    report = _json("report", "--from", dump, "--json")
    assert {step["tool_errors"] for step in report["training"]} == {None}
    assert {tool["errors"] for step in report["training"] for tool in step["tools"]} == {None}
    assert not re.search(r"tool errors.*0%|0/\d", run_here("report", "--from", dump))
    assert re.search("tool errors +– +–", run_here("compare", "10/1/0", "10/1/1", "--from", dump))


def test_an_unknown_number_of_failed_calls_is_no_link(dump):
    """The page of a run links the calls of a tool, and no list of failures that nobody knows."""
    with Served(dump, dump.parent) as served:
        page = served.get(next(href for href in hrefs(served.get("/"), "/run?")))
        assert [href for href in hrefs(page, "/trajectories?") if "tool=calc" in href]
        assert not [href for href in hrefs(page, "/trajectories?") if "failed_tool" in href]


@pytest.mark.parametrize("command", ["compare 0/7/0 0/7/1", "group 0/7"])
def test_long_name_of_a_failed_tool_goes_on_below_its_beginning(tmp_path, monkeypatch, command):
    """Where the cells of two trajectories are narrow, ``failed`` is not at their edge."""
    monkeypatch.setenv("COLUMNS", "80")
    name = "HermesToolParser.extract_tool_calls"
    result = {"type": "tool_result", "tool_use_id": "c", "content": "none", "is_error": True}
    asked = [{"type": "tool_use", "id": "c", "name": name, "input": {"e": side}} for side in ("a", "b")]
    calls = [{"role": "assistant", "content": [each]} for each in asked]
    records = [
        {"messages": [call, {"role": "user", "content": [result]}], "step": 0, "index": 7, "reward": reward}
        for reward, call in enumerate(calls)
    ]
    path = write_lines(tmp_path / "own.jsonl", records)
    told = run_here(*command.split(), "--from", path)
    assert re.search(rf"^   {re.escape(name)} {{3,}}{re.escape(name)}", told, re.MULTILINE)
    assert re.search(r"^   failed {3,}failed", told, re.MULTILINE)


def test_a_misspelt_format_is_answered_with_the_format(dump):
    """A path after a colon shows that the word before it is meant as a format."""
    told = run_here("list", "--from", f"verrl:{dump}", code=2)
    assert told.startswith("There is no format 'verrl'. Did you mean 'verl'? Formats: verl, ")
    assert f"There is no file or directory verrl:{dump}x" in run_here(
        "list", "--from", f"verrl:{dump}x", code=2
    )


def test_share_of_tool_errors_is_of_the_calls_whose_end_is_known(tmp_path):
    """A result without `is_error` says nothing: it is a call, but none that went well."""
    asked = {"role": "user", "content": "6*7?"}
    called = {"type": "tool_use", "id": "t", "name": "calc", "input": {"a": 1}}
    talks = [
        [
            asked,
            {"role": "assistant", "content": [called]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "3"} | end]},
            {"role": "assistant", "content": "42"},
        ]
        for end in ({"is_error": True}, {"is_error": False}, {}, {}, {})
    ]
    dump = write_lines(tmp_path / "own.jsonl", [{"messages": talk, "reward": 1} for talk in talks])
    (step,) = _json("report", "--from", str(dump), "--json")["training"]
    (tool,) = step["tools"]
    assert (step["tool_calls"], step["tool_calls_known"], step["tool_errors"]) == (5, 2, 1)
    assert (tool["calls"], tool["known"], tool["errors"]) == (5, 2, 1)
    told = run_here("report", "--from", str(dump))
    assert told.count("50% of 2") == 2
    assert "20%" not in told


def test_health_gives_no_advice_that_a_dump_cannot_follow(dump):
    """Nothing more can be recorded of it: the reasons stand in place of ways to observe more."""
    told = run_here("health", "--from", dump)
    assert "unobserved:\n" in told
    assert "→ --all says what is missing" in told
    for advice in ("not observed yet", "record", "score(", "docs/"):
        assert advice not in told
    assert "A dump does not say of each tool call whether it failed." in run_here(
        "health", "--all", "--from", dump
    )


def test_patterns_and_forced_formats(dump):
    """A pattern names several files; a format may be forced before the path."""
    assert "1 file, step 10, 4 trajectories" in run_here("list", "--from", f"{dump}/rollouts/1*.jsonl")
    assert "step 2" in run_here("list", "--from", f"verl:{dump}/rollouts/2.jsonl")
    talk = [{"role": "assistant", "content": "hi"}]
    own = write_lines(dump / "own.jsonl", [{"talk": talk, "points": 3}])
    listed = run_here("list", "--from", own, "--map", "messages=talk,reward=points", "--format", "csv")
    assert ",3.0," in listed
    assert "--map messages=FIELD" in run_here("list", "--from", own, code=2)
    assert run_here("list", "--map", "messages=talk", code=2) == (
        "--map names fields of a dump: name the dump with --from.\n"
    )
    assert "There is no" in run_here("list", "--from", dump / "none.jsonl", code=2)


@pytest.mark.parametrize("command", [["list", "--from"], ["view", "--port", "0"]])
@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("nothing", "nothing holds no dump of rollouts, and no segments of a run. Name a folder with"),
        ("empty.jsonl", "empty.jsonl holds no records: it is empty. Name a file of JSON lines"),
        ("text.log", "text.log holds no records: it is no dump. Name a file of JSON lines"),
        ("none.jsonl", "There is no file or directory none.jsonl. Name a dump of rollouts"),
        ("no*.jsonl", "There is no file or directory no*.jsonl. Name a file of JSON lines"),
    ],
)
def test_what_holds_no_rollouts_is_said_in_one_line(tmp_path, place, told, command):
    """The line has the path, the reason, and what to do."""
    (tmp_path / "nothing").mkdir()
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "text.log").write_text("some words")
    said = run(*command, place, code=2)
    assert told in said
    assert said.count("\n") == 1


def test_what_cannot_be_read_is_named(dump, opened, monkeypatch):
    """What may not be read is left out of a folder, with the reason; alone it ends the command."""
    write_lines(dump / "closed/1.jsonl", [verl_line()])
    closed = [dump / "closed", dump / "rollouts/2.jsonl"]

    def refused(function):
        def checked(path, *arguments, **options):
            if str(path) in map(str, closed):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *arguments, **options)

        return checked

    monkeypatch.setattr(os, "scandir", refused(os.scandir))
    monkeypatch.setattr("builtins.open", refused(open))
    found = opened(dump)
    assert len(found.trajectories()) == 4
    for path in closed:
        told = f"{path} cannot be read: Permission denied. Read it as its owner, or give yourself permission."
        assert told in found.remarks
        with pytest.raises(ViewerError, match=re.escape(told)):
            opened(path)


def test_view_takes_paths(dump, tmp_path):
    """The pages of a dump are those of a table, without times; several paths may be named."""
    lines = [verl_line(number, step=3) for number in range(4)]
    other = write_lines(tmp_path / "run/validation/3.jsonl", lines)
    with Served(dump / "rollouts", tmp_path, str(other)) as server:
        run_page = server.get("/").text
        assert "2–10" in run_page
        for page in ("/run", "/trajectories", "/step?step=10", "/health"):
            wait_for(lambda page=page: server.get(page).status == 200, 120, page)
        assert "validation/3/0/0" in server.get("/trajectories").text
        assert server.end() == 0


def test_view_follows_a_dump_that_grows(dump, tmp_path):
    """A new file and new lines are on the pages without a restart; the table of what was there is removed."""
    with Served(dump, tmp_path) as server:
        kept = tmp_path / "kept/otel-rollout/dumps"
        (first,) = kept.iterdir()
        write_lines(dump / "rollouts/11.jsonl", [verl_line(step=11)])
        wait_for(lambda: "2–11" in server.get("/").text, 60, "the new step")
        with (dump / "rollouts/11.jsonl").open("a") as file:
            file.write(json.dumps(verl_line(1, step=11)) + "\n" + '{"half": ')
        wait_for(lambda: "11/0/1" in server.get("/trajectories?step=11").text, 60, "the new line")
        wait_for(lambda: len(list(kept.iterdir())) == 1, 60, "older tables removed")
        assert not first.exists()
        assert server.end() == 0
    assert "10 trajectories" in run_here("list", "--from", dump)


def test_import_makes_a_dump_lasting(dump, tmp_path, monkeypatch):
    """A dump is imported once, also under another name, and scores can be added to it."""
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(tmp_path / "table"))
    assert "32 spans imported" in run_here("import", dump, "--to", "delta")
    assert "0 spans imported" in run_here("import", dump / "rollouts", "--to", "delta")
    query = ("query", "SELECT * FROM trajectories ORDER BY trace_id", "--format", "json", "--from")
    assert _json(*query, tmp_path / "table") == _json(*query, dump)


def test_imported_tools_without_an_end_have_no_duration(tmp_path, monkeypatch):
    """A dump says when a tool's result was there, and not how long the tool ran."""
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(tmp_path / "table"))
    traces = write_lines(tmp_path / "traces.jsonl", [EPISODE])
    run_here("import", traces, "--to", "delta")
    sql = "SELECT name, duration_ns, status FROM spans ORDER BY span_id"
    made, read = (
        _json("query", sql, "--format", "json", "--from", at) for at in (tmp_path / "table", traces)
    )
    assert [row["name"] for row in made if row["duration_ns"] is None] == ["calc"]
    assert made == read


def test_imported_turns_continue_those_that_the_dump_says(tmp_path, monkeypatch):
    """Also where an agent asks for the same call, with the same result, again and again."""
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(tmp_path / "table"))
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    again = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "no"}]
    talk = write_lines(
        tmp_path / "talk.jsonl", [{"messages": [{"role": "user", "content": "?"}, *again * 4]}]
    )
    run_here("import", talk, "--to", "delta")
    sql = "SELECT span_id, continues, shared FROM turns ORDER BY span_id"
    found = [
        run_here("query", sql, "--from", place, "--format", "csv") for place in (tmp_path / "table", talk)
    ]
    assert [row.rpartition(",")[2] for row in found[0].split()] == ["shared", "", "1", "3", "5"]
    assert found[0] in found[1]


def _json(*arguments):
    """Return the JSON that a command prints beside its remarks."""
    told = run_here(*arguments)
    lines = [
        line
        for line in told.splitlines()
        if not line.startswith(("verl rollout dump", "messages: ", "verifiers"))
    ]
    return json.loads("\n".join(lines))
