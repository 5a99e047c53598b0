"""The real command ``vf-eval``, traced by the variable alone, into the rollout table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_rollout import open_table
from otel_rollout.base.environment import PREFIXES
from tests.dumps.reading import OpenedDump
from tests.verifiers.conftest import ENVIRONMENTS
from tests.verifiers.scripted_model import ScriptedModel, serving

ROOT = Path(__file__).parents[2]
SIBLINGS = 2


class Evaluation(NamedTuple):
    """A finished evaluation: what verifiers wrote, and the table."""

    traces: list[dict[str, Any]]
    table: Path
    log: str


def _environment(place: Path, **variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    paths = [str(ENVIRONMENTS), str(ROOT), str(ROOT / "exporters"), str(ROOT / "autoload")]
    private = {"HOME": str(place / "home"), "OTEL_ROLLOUT_SPOOL_DIR": str(place / "spool")}
    return {**kept, **private, "PYTHONPATH": os.pathsep.join(paths), **variables}


def _tracing(place: Path) -> dict[str, str]:
    return {"OTEL_TRACES_EXPORTER": "delta", "OTEL_ROLLOUT_DELTA_URI": str(place / "table")}


def _command(model: ScriptedModel, place: Path, *options: str) -> list[str]:
    program = Path(sys.executable).with_name("vf-eval")
    to_model = ["--model", "scripted", "--client.base-url", model.url, "--client.api-key-var", "UNSET"]
    to_files = ["--no-push", "--no-rich", "--output-dir", str(place / "out"), "--run.name", "evaluation"]
    runtime = ["--env.agent.runtime.type", "subprocess"]
    return [str(program), "sums-v1", *runtime, *to_model, *to_files, *options]


def _evaluate(model: ScriptedModel, place: Path, **variables: str) -> Evaluation:
    place.mkdir()
    finished = subprocess.run(
        _command(model, place, "--num-rollouts", str(SIBLINGS)),
        env=_environment(place, **variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    lines = (place / "out" / "evaluation" / "traces.jsonl").read_text().splitlines()
    traces = [trace for line in lines for trace in json.loads(line)["traces"]]
    return Evaluation(traces, place / "table", finished.stderr)


@pytest.fixture(scope="module")
def server() -> Any:
    """Serve one scripted model for all evaluations."""
    with serving() as model:
        yield model


@pytest.fixture(scope="module")
def traced(server: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """Evaluate four tasks with two siblings each, traced by the variable alone."""
    place = tmp_path_factory.mktemp("traced") / "run"
    return _evaluate(server, place, **_tracing(place))


def _reward(trace: dict[str, Any]) -> float:
    return sum(reward["score"] * reward["weight"] for reward in trace["rewards"].values())


def _tools(trace: dict[str, Any]) -> int:
    return sum(node["message"]["role"] == "tool" for node in trace["nodes"])


def test_evaluation_in_the_table_equals_the_one_that_verifiers_wrote(traced: Evaluation) -> None:
    """Trajectories, their turns, tool calls, tokens and rewards: all of them."""
    rows = {row["trace_id"]: row for row in open_table(traced.table).trajectories}
    names = {
        row["trace_id"]: json.loads(row["attributes"])["rollout.verifiers_trace_id"]
        for row in open_table(traced.table).sql(
            "SELECT trace_id, attributes FROM spans WHERE name = 'rollout_trace'"
        )
    }
    found = {
        names[row["trace_id"]]: (
            int(row["sample_index"]), row["turns"], row["tool_calls"], row["reward"],
            row["tokens_in"], row["tokens_out"], row["state"], row["validate"],
        )
        for row in rows.values()
    }  # fmt: skip
    assert len(traced.traces) == 4 * SIBLINGS
    assert found == {
        trace["id"]: (
            trace["task"]["data"]["idx"],
            sum(node["sampled"] for node in trace["nodes"]),
            _tools(trace),
            _reward(trace),
            sum(call["usage"]["prompt_tokens"] for call in trace["calls"]),
            sum(call["usage"]["completion_tokens"] for call in trace["calls"]),
            "ok",
            True,
        )
        for trace in traced.traces
    }


def test_the_file_that_verifiers_wrote_opens_as_the_same_trajectories(
    traced: Evaluation, tmp_path: Path
) -> None:
    """The dump agrees with what was traced live: identity, turns, tools, reward, tokens, durations."""
    folder = traced.table.parent / "out"
    dump = OpenedDump(folder, kept=tmp_path / "kept")
    columns = (
        "sample_index",
        "rollout_n",
        "turns",
        "tool_calls",
        "reward",
        "tokens_out",
        "validate",
        "experiment",
    )
    live = {tuple(row[name] for name in columns) for row in open_table(traced.table).trajectories}
    assert {tuple(row[name] for name in columns) for row in dump.trajectories()} == live
    assert dump.remarks[0] == f"verifiers traces: 1 file, no step, {4 * SIBLINGS} trajectories"
    told = sorted(
        call["time"]["end"] - call["time"]["start"] for trace in traced.traces for call in trace["calls"]
    )
    assert [
        row["seconds"] for row in dump.rows("SELECT seconds FROM turns ORDER BY seconds")
    ] == pytest.approx(told, abs=1e-6)  # a float of seconds since 1970 has steps of 0.24 µs
    assert all(row["seconds"] > 0 for row in dump.trajectories())


def test_siblings_of_an_evaluation_are_a_group(traced: Evaluation) -> None:
    """Each task has the siblings 0 and 1; the experiment is the evaluation's run."""
    rows = list(open_table(traced.table).trajectories)
    assert Counter((row["sample_index"], row["rollout_n"]) for row in rows) == {
        (str(task), sibling): 1 for task in range(4) for sibling in range(SIBLINGS)
    }
    assert {(row["experiment"], row["group_size"], row["step"]) for row in rows} == {
        ("evaluation", SIBLINGS, None)
    }
    assert len({row["group_id"] for row in rows}) == 4


def test_scores_of_an_evaluation_are_the_rewards_and_metrics(traced: Evaluation) -> None:
    """Each reward function, each metric and the sum, with their values."""
    scores = list(open_table(traced.table).scores)
    expected: Counter[tuple[str, float]] = Counter()
    for trace in traced.traces:
        expected.update((name, reward["score"]) for name, reward in trace["rewards"].items())
        expected.update(trace["metrics"].items())
        expected["reward", _reward(trace)] += 1
    assert Counter((score["name"], score["value"]) for score in scores) == expected


def test_conversation_of_an_evaluation_is_shown(traced: Evaluation) -> None:
    """The command ``show`` has the prompt, the tool's call and result, and the reply."""
    command = Path(sys.executable).with_name("otel-rollout")
    shown = subprocess.run(
        [str(command), "show", "validation/-/0/0", "--from", str(traced.table)],
        env=_environment(traced.table.parent),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    for part in ("sum of 2 and 3", "add", "add(a=2, b=3)", "reward", "1.25"):
        assert part in shown.stdout


def test_untraced_evaluation_gives_the_same_results(
    traced: Evaluation, server: ScriptedModel, tmp_path: Path
) -> None:
    """Without the variable nothing is recorded; verifiers writes the same conversations and rewards."""
    plain = _evaluate(server, tmp_path / "run")
    assert not (tmp_path / "run" / "spool").exists()
    assert "otel" not in plain.log
    assert _results(plain.traces) == _results(traced.traces)


def _results(traces: list[dict[str, Any]]) -> list[str]:
    kept = [
        {
            "task": trace["task"],
            "messages": [[node.get("parent"), node["message"], node["sampled"]] for node in trace["nodes"]],
            "calls": [{**call, "time": None} for call in trace["calls"]],
            "results": [trace[name] for name in ("rewards", "metrics", "info", "stop_condition", "ok")],
        }
        for trace in traces
    ]
    return sorted(json.dumps(result, sort_keys=True) for result in kept)


def test_rollout_of_a_killed_evaluation_is_an_error(tmp_path: Path) -> None:
    """The forwarder outlives the killed process, and ends its trajectory."""
    place = tmp_path / "run"
    place.mkdir()
    with serving() as model:
        process = subprocess.Popen(
            _command(model, place, "--env.taskset.prompts", "model hangs"),
            env=_environment(place, **_tracing(place)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            assert model.asked.wait(120)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
        (row,) = _rows_within(place / "table", 120)
    assert (row["state"], row["sample_index"], row["rollout_n"]) == ("error", "0", 0)


def _rows_within(table: Path, seconds: float) -> list[dict[str, Any]]:
    """Return the ended trajectories of a table, once there are any."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (table / "_delta_log").exists():
            rows = [row for row in open_table(table).trajectories if row["state"] != "running"]
            if rows:
                return rows
        time.sleep(0.2)
    return []


@pytest.mark.parametrize("is_traced", [False, True])
def test_integration_is_imported_only_if_tracing_is_configured(is_traced: bool, tmp_path: Path) -> None:
    """Without the variable, verifiers imports nothing of this package."""
    printed = subprocess.run(
        [sys.executable, "-m", "tests.verifiers.programs.imported"],
        env=_environment(tmp_path, **(_tracing(tmp_path) if is_traced else {})),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    imported = json.loads(printed.stdout)
    assert ("otel_rollout.integrations.verifiers.lifecycle" in imported) is is_traced
    assert is_traced or imported == []
