"""What `otel-rollout export` writes is what its readers read again."""

import json
import shlex

import orjson
import pytest
from typer.testing import CliRunner

from otel_rollout.cli import app
from otel_rollout.cli.sources import as_table
from otel_rollout.table.query import Engine, dicts_of
from tests.dumps.reading import verl_line, write_lines
from tests.dumps.test_example import ROOT
from tests.dumps.test_readers import CALL, EPISODE, LOOP
from tests.table.tables import root, row, score, written

ROWS = "path, reward, turns, tool_calls, tool_errors, tokens_in, tokens_out, state, error_message"
NAME = "step, sample_index, rollout_n, validate"
JSON_INPUT = json.dumps({"input.mime_type": "application/json"})
SAID = {
    "replies": f"SELECT {NAME}, reply, finish_reason FROM turns",
    "tools": f"SELECT {NAME}, tool_name, arguments, result, status, error_type FROM tool_calls",
}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)


def facts(place, columns=ROWS):
    """Return the trajectories of a dump or table, and what was said in them."""
    with as_table(str(place)) as (store, _):
        engine = Engine(store.open())
        found = {"rows": dicts_of(engine.run(f"SELECT {columns} FROM trajectories ORDER BY path"))}
        for name, sql in SAID.items():
            rows = dicts_of(engine.run(f"{sql} ORDER BY {NAME}, start_ns"))
            found[name] = [{key: _plain(value) for key, value in row.items()} for row in rows]
    return found


def _plain(value):
    """Return JSON text decoded, and the blanks around a text removed."""
    text = value.strip() if isinstance(value, str) else value
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _spoken(turn):
    """Return a turn without the calls in its text, which are values in the next context."""
    return turn | {"reply": str(turn["reply"]).partition("<tool_call>")[0].strip()}


def _result(value):
    """Return the text of a tool's result that is an object."""
    return _plain(value["text"]) if isinstance(value, dict) else value


def export(place, *options, code=0):
    """Run the command and return its output."""
    ran = CliRunner().invoke(app, ["export", "--from", str(place), *map(str, options)])
    assert ran.exit_code == code, ran.output
    return ran.stdout if code == 0 else ran.output


def failed_episode():
    """Return an episode that failed, whose prompt has a reply, and whose second context is its own."""
    said = [("user", "1+1?"), ("assistant", "2"), ("user", "6*7?"), ("assistant", "42")]
    nodes = [
        {
            "parent": place - 1 if place else None,
            "sampled": place == 3,
            "message": {"role": role, "content": text},
        }
        for place, (role, text) in enumerate(said)
    ]
    nodes += [
        {"sampled": False, "message": {"role": "user", "content": "Shorter."}},
        {"parent": 4, "sampled": True, "message": {"role": "assistant", "content": "So."}},
    ]
    trace = {"nodes": nodes, "calls": [], "rewards": {}, "errors": [{"type": "T", "message": "late"}]}
    return EPISODE | {"id": "e2", "traces": [trace]}


def test_atif_of_a_dump_is_read_again_with_the_same_facts(tmp_path):
    """Rewards, turns, calls, texts, errors and times of both contexts and of given replies are the same."""
    episodes = [EPISODE, failed_episode()]
    dump = write_lines(tmp_path / "own/traces.jsonl", episodes)
    assert "2 trajectories written to trials" in export(dump, "--format", "atif", "--to", "trials")
    columns = f"{ROWS}, seconds, start_time, experiment"
    assert facts("trials", columns) == facts(dump, columns)
    results = [json.loads(path.read_text()) for path in (tmp_path / "trials").rglob("result.json")]
    assert {} in [result["verifier_result"]["rewards"] for result in results]


@pytest.mark.parametrize("format_", ["atif", "messages"])
def test_the_example_is_read_again_from_a_file(tmp_path, format_):
    """Documents and messages in lines have the same facts, also where a call is only in the text."""
    example, made = ROOT / "examples/dumps/rollouts", tmp_path / "made.jsonl"
    made.write_text(export(example, "--format", format_))
    assert len(made.read_bytes().splitlines()) == 36
    assert facts(made) == facts(example)


def test_a_live_run_is_exported_with_its_failed_tools(tmp_path, demo_table):
    """ATIF says how each call ended; messages have the same rewards and turns."""
    export(demo_table, "--format", "atif", "--to", "trials")
    columns = f"{ROWS}, error_type"
    made, live = facts("trials", columns), facts(demo_table, columns)
    assert made["rows"] == live["rows"]
    assert [_spoken(turn) for turn in made["replies"]] == [_spoken(turn) for turn in live["replies"]]
    results = [
        (call["result"], _result(of["result"])) for call, of in zip(made["tools"], live["tools"], strict=True)
    ]
    assert [pair for pair in results if pair[1] is not None and pair[0] != pair[1]] == []
    export(demo_table, "--format", "messages", "--to", "all.jsonl")
    rows = "path, reward, turns"
    assert facts("all.jsonl", rows)["rows"] == facts(demo_table, rows)["rows"]


def test_what_atif_does_not_say_is_unknown_and_no_agent_is_made_up(tmp_path):
    """Times of calls are unknown, not waiting; reasons of scores are read again, as are failures of tools."""
    spans = []
    trained = {"score_name": "trained", "score_label": "False", "score_comment": "too long"}
    for name in ("1", "2"):
        one = {"rollout_n": int(name)}
        spans += [
            root(name, **one),
            row(name, f"b{name}", f"a{name}", kind="LLM", input=CALL, output="So.", **one),
            row(name, f"c{name}", f"a{name}", kind="TOOL", tool_name="look", output="a wall", **one),
            score(name, f"d{name}", 0.0, **trained, **one),
        ]  # fmt: skip
    written(tmp_path / "table", spans)
    export(tmp_path / "table", "--format", "atif", "--to", "first")
    export("first", "--format", "atif", "--to", "second")
    for place in ("first", "second"):
        assert {row["agent_name"] for row in facts(place, "path, agent_name")["rows"]} == {None}
        (step,) = told("report", "--from", place, "--json")["training"]
        assert step["trainer"]["filtered"] == {"too long": 2}
        assert step["seconds"]["p50"] == 1.0
        phases = ("generate", "tool", "reward", "waiting")
        assert {step["seconds"][phase] for phase in phases} == {None}
        assert [time["phase"] for time in told("timeline", "--from", place, "--json")["phases"]] == [
            "unrecorded"
        ]
        health = told("health", "--only", "tool_error_burst", "--from", place, "--json")
        (check,) = health["checks"]
        assert (check["status"], check["message"]) == ("healthy", "No tool call failed.")


def test_time_of_a_trajectory_whose_calls_atif_leaves_out_is_no_waiting(tmp_path):
    """Calls of sub-trajectories and reward functions are not in the file: their times are unknown."""
    spans = [
        root("1"),
        row("1", "b1", "a1", kind="AGENT", rollout_n=100),
        row("1", "c1", "b1", kind="LLM", rollout_n=100, input=CALL, output="So."),
        row("1", "d1", "a1", kind="EVALUATOR"),
    ]
    written(tmp_path / "table", spans)
    export(tmp_path / "table", "--format", "atif", "--to", "first")
    figures = "seconds, generate_seconds, tool_seconds, reward_seconds, waiting_seconds"
    (found,) = told("query", f"SELECT {figures} FROM phases", "--from", "first", "--format", "json")
    assert tuple(found.values()) == (1.0, None, None, None, None)
    (phase,) = told("timeline", "--from", "first", "--json")["phases"]
    assert phase["phase"] == "unrecorded"


def test_running_trajectory_is_read_again_as_running(tmp_path):
    """Its scores stay, and it does not count as ended, also in a second export of what was read."""
    spans = [
        row("1", "b1", "a1", kind="LLM", input=CALL, output="So."),
        score("1", "c1", 0.5),
        root("2", rollout_n=1),
        row("2", "b2", "a2", rollout_n=1, kind="LLM", input=CALL, output="So."),
    ]
    written(tmp_path / "table", spans)
    export(tmp_path / "table", "--format", "atif", "--to", "first")
    export("first", "--format", "atif", "--to", "second")
    for place in (tmp_path / "table", "first", "second"):
        found = facts(place, "path, state, turns, reward")["rows"]
        assert [tuple(each.values()) for each in found] == [
            ("1/7/0", "running", 1, 0.5),
            ("1/7/1", "ok", 1, None),
        ]


def told(*arguments):
    """Return what a command prints as JSON."""
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def test_tools_that_the_agent_called_before_a_model_are_read_again(tmp_path):
    """Such a call stays a call in ATIF, with its failure, also in a second export of what was read."""
    spans = [
        root("1"),
        row("1", "b", "a1", kind="TOOL", tool_name="look", name="look", input='{"at": 1}', output="a wall"),
        row("1", "c", "a1", kind="TOOL", tool_name="go", name="go", status="error", error_message="a wall"),
        row("1", "d", "a1", kind="LLM", input=CALL, output="So."),
    ]
    written(tmp_path / "table", spans)
    export(tmp_path / "table", "--format", "atif", "--to", "first")
    export("first", "--format", "atif", "--to", "second")
    for place in (tmp_path / "table", "first", "second"):
        (found,) = facts(place, "path, turns, tool_calls, tool_errors")["rows"]
        assert found == {"path": "1/7/0", "turns": 1, "tool_calls": 2, "tool_errors": 1}


def test_project_and_unknown_results_are_read_again(tmp_path):
    """A tool call without a result gets none, an empty result stays one, and each span keeps its project."""
    tools = [{"tool_name": name, "name": name} for name in ("look", "wait", "go", "stop")]
    ends = [{}, {"output": ""}, {"output": "a wall"}, {"status": "error", "error_message": "late"}]
    spans = [root("1"), row("1", "b", "a1", kind="LLM", input=CALL, output="I look.")]
    for number, (tool, end) in enumerate(zip(tools, ends, strict=True)):
        spans.append(row("1", f"c{number}", "a1", kind="TOOL", **tool, **end))
    written(tmp_path / "table", [*spans, row("1", "d", "a1", kind="LLM", input="{}", output="So.")])
    export(tmp_path / "table", "--format", "atif", "--to", "first")
    export("first", "--format", "atif", "--to", "second")
    for place in (tmp_path / "table", "first", "second"):
        found = facts(place, "project, turns, tool_calls, tool_errors")
        assert found["rows"] == [{"project": "project", "turns": 2, "tool_calls": 4, "tool_errors": 1}]
        assert [call["result"] for call in found["tools"]] == [None, "", "a wall", None]
        with as_table(str(place)) as (store, _):
            projects = dicts_of(Engine(store.open()).run("SELECT DISTINCT project FROM spans"))
        assert projects == [{"project": "project"}]


def test_model_is_that_of_the_table(tmp_path):
    """A reply in ATIF names the model of the call, or of the call inside it; the table reads it again."""
    said = {"kind": "LLM", "input": CALL, "output": "So."}
    spans = [
        root("1"),
        row("1", "b", "a1", model="policy", **said),
        root("2", rollout_n=1),
        row("2", "c", "a2", rollout_n=1, **said),
        row("2", "d", "c", rollout_n=1, model="inner", **said),
    ]
    written(tmp_path / "table", spans)
    export(tmp_path / "table", "--format", "atif", "--to", "trials")
    for place in (tmp_path / "table", "trials"):
        with as_table(str(place)) as (store, _):
            found = dicts_of(Engine(store.open()).run("SELECT model FROM turns ORDER BY model"))
        assert [turn["model"] for turn in found] == ["inner", "policy"]


def test_a_reward_that_is_no_number_has_a_label(tmp_path):
    """Messages and a group have the two columns of a list; messages are read again with both."""
    said = {"input": '{"messages": [{"role": "user", "content": "?"}]}', "attributes": JSON_INPUT}
    spans = []
    for number, (value, label) in enumerate(
        [(None, "good"), (1.0, "True"), (None, "nan"), (1e200, None)], start=1
    ):
        score = {"name": "reward", "value": value, "label": label, "time_ns": 1}
        spans.append(root(str(number), rollout_n=number, scores=[score]))
        call = {"kind": "LLM", "rollout_n": number, "output": "So."}
        spans.append(row(str(number), f"b{number}", f"a{number}", **call, **said))
    written(tmp_path / "table", spans)
    expected = [(None, "good"), (1.0, "True"), (None, "nan"), (1e200, None)]
    made = tmp_path / "made.jsonl"
    made.write_text(export(tmp_path / "table", "--format", "messages"))
    lines = [json.loads(line) for line in made.read_text().splitlines()]
    assert [(line["reward"], line["reward_label"]) for line in lines] == expected
    read_again = facts(made, "path, reward, reward_label")["rows"]
    assert [(row["reward"], row["reward_label"]) for row in read_again] == expected
    ran = CliRunner().invoke(app, ["group", "1/7", "--json", "--from", str(tmp_path / "table")])
    siblings = json.loads(ran.stdout)["siblings"]
    assert [(each["reward"], each["reward_label"]) for each in siblings] == expected


def test_identity_is_read_again_as_it_was(tmp_path):
    """Step and rollout as text, leading zeros, slashes in a name, and no dataset row stay what they are."""
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "42"}]
    identities = [("warm-up", "007", 0), (2, "gsm8k/train", 1), (3, 7, 0), (3, 7, "retry")]
    named = [
        {"step": step, "sample_index": sample, "rollout_n": rollout, "messages": said}
        for step, sample, rollout in identities
    ]
    names = "path, step, sample_index, rollout_n, rollout_text, group_path"
    for format_ in ("atif", "messages"):
        made = tmp_path / f"{format_}.jsonl"
        made.write_text(export(write_lines(tmp_path / "dump.jsonl", named), "--format", format_))
        assert facts(made, names)["rows"] == facts(tmp_path / "dump.jsonl", names)["rows"]
    spans = tmp_path / "table"
    written(
        spans,
        [root("1", sample_index=None, rollout_n=3), row("1", "b", "a1", sample_index=None, rollout_n=3)],
    )
    made.write_text(export(spans, "--format", "atif"))
    assert facts(made, names)["rows"] == facts(spans, names)["rows"]


def test_the_options_of_list_select(tmp_path):
    """Filters, conditions, order and limit are those of `list`; nothing selected is an error."""
    lines = [verl_line(number, step=2) for number in range(4)]
    dump = write_lines(tmp_path / "run/2.jsonl", lines)
    options = shlex.split("--format messages --reward 1 --sort -path --limit 1")
    (line,) = export(dump, *options).splitlines()
    assert json.loads(line) == {
        "step": 2, "sample_index": "1", "rollout_n": 1, "validate": False, "reward": 1.0,
        "reward_label": None, "error": None,
        "messages": [
            {"role": "user", "content": "user\n3+1?\nassistant\n"},
            {"role": "assistant", "content": "4"},
        ],
    }  # fmt: skip
    assert "no trajectory" in export(dump, "--format", "messages", "--step", "9", code=2)


def test_bad_arguments_are_named(tmp_path):
    """A format that is none or missing, and a place that holds something, are refused in one line."""
    dump = write_lines(tmp_path / "run/2.jsonl", [verl_line()])
    assert "--format xml: name atif or messages" in export(dump, "--format", "xml", code=2)
    assert export(dump, code=2).endswith("--format is missing: name atif or messages.\n")
    kept = "exists, and nothing in it is replaced: name a new"
    refused = export(dump, "--format", "atif", "--to", dump.parent, code=2)
    assert f"run {kept} directory with --to." in refused
    before = dump.read_bytes()
    refused = export(dump, "--format", "messages", "--to", dump, code=2)
    assert f"2.jsonl {kept} file with --to." in refused
    assert dump.read_bytes() == before


@pytest.mark.parametrize("depth", [400, 1000])
def test_deep_values_are_written_or_named(tmp_path, depth):
    """Arguments that are nested more deeply than a JSON library goes cost no traceback."""
    arguments = '{"a": ' + "[" * depth + "]" * depth + "}"
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    dump = write_lines(tmp_path / "deep.jsonl", [{"messages": said}])
    (line,) = export(dump, "--format", "messages").splitlines()
    assert '"name":"f"' in line
    is_too_deep = depth > 900
    told = export(dump, "--format", "atif", code=2 if is_too_deep else 0)
    assert ("nested too deeply" if is_too_deep else "[" * depth) in told


def test_documents_are_valid_by_the_formats_models(tmp_path):
    """Also those of a trajectory without messages, and of calls that only the text has."""
    models = pytest.importorskip("atif", reason="needs Python 3.11")
    empty = EPISODE | {"id": "e3", "traces": [], "errors": [{"type": "BootError", "message": "no sandbox"}]}
    for name, lines in {"verl": [verl_line(output=LOOP), verl_line(1, output=CALL)],
                        "verifiers": [EPISODE, failed_episode(), empty]}.items():  # fmt: skip
        dump = write_lines(tmp_path / name / "1.jsonl", lines)
        for line in export(dump, "--format", "atif").splitlines():
            read = models.Trajectory.model_validate(orjson.loads(line))
            assert len(read.steps) >= 1


@pytest.mark.parametrize(
    "named",
    [
        {"step": None, "step_text": "1/2", "sample_index": "a/b"},
        {"step": None, "step_text": "validation"},
        {"step": 9, "sample_index": ""},
        {"step": None, "sample_index": None, "rollout_n": None},
        {"step": 1, "sample_index": "7", "validate": True},
    ],
)
def test_an_identity_is_read_again_from_atif(tmp_path, named):
    """Names may have slashes, be empty, or be missing."""
    failed = {"status": "error", "error_type": "KeyError", "error_message": "'x'"}
    call = row("1", "b", "a1", kind="LLM", output="So.", **named)
    store = written(tmp_path / "table", [root("1", **named, **failed), call])
    export(store.location.uri, "--format", "atif", "--to", "trials")
    columns = "step, step_text, sample_index, rollout_n, validate, path, error_type, error_message"
    assert facts("trials", columns)["rows"] == facts(store.location.uri, columns)["rows"]
