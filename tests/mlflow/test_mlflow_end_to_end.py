"""From a job on Ray to MLflow through real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient

import otel_rollout
from tests.ray_start import run_program
from tests.waits import changed


@pytest.fixture
def environment(uri: str, project: str) -> dict[str, str]:
    """Variables that configure everything."""
    return {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "mlflow",
        "MLFLOW_TRACKING_URI": uri,
        "OTEL_ROLLOUT_PROJECT": project,
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a FutureWarning of Ray's
    }


def traces_of(uri: str, project: str, search: str = "") -> list[Any]:
    mlflow.set_tracking_uri(uri)
    experiment = MlflowClient(uri).get_experiment_by_name(project)
    assert experiment is not None
    return mlflow.search_traces(
        locations=[experiment.experiment_id], filter_string=search, max_results=500, return_type="list"
    )


def tree_of(trace: Any) -> dict[str, Any]:
    """Return the names of a trace's spans, nested; fail unless they are one tree."""
    spans = trace.data.spans
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans), "a span twice"
    roots = [span for span in spans if span.parent_id is None]
    assert len(roots) == 1
    assert all(span.parent_id in ids for span in spans if span is not roots[0]), "an orphan"

    def below(parent: Any) -> Counter[str]:
        return Counter(span.name for span in spans if span.parent_id == parent.span_id)

    return {roots[0].name: below(roots[0])}


def test_every_ended_span_is_delivered_after_the_job_is_killed(
    uri: str, project: str, environment: dict[str, str]
) -> None:
    """After ray.kill and ray.shutdown MLflow has each trajectory whole and once."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.mlflow.killed_job", "4", "5", "20"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    account = json.loads(ran.stdout.splitlines()[-1])
    assert (account["recorded"], account["lost"], account["open"]) == (4 * 5 * 22, 0, 0)
    found = traces_of(uri, project)
    assert Counter(trace.info.trace_id for trace in found) == Counter(f"tr-{i}" for i in account["ids"])
    for trace in found:
        assert tree_of(trace) == {"rollout_trace": {"Worker.step": 20, "score reward": 1}}
    assert len(traces_of(uri, project, "tags.step = '1'")) == 10
    assert len(traces_of(uri, project, "feedback.reward > 14.5")) == 5


def test_trajectory_is_shown_while_it_runs_and_as_an_error_once_killed(
    uri: str, project: str, environment: dict[str, str]
) -> None:
    """The tracker lists it with its identity while it runs.

    Once it is killed, the tracker shows its children too.
    """
    command = [sys.executable, "-m", "tests.programs.long_trajectory"]
    hasty = environment | changed(live_age=0.1)
    with subprocess.Popen(command, env=hasty, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        running = wait_for_state(uri, project, "IN_PROGRESS", 60)
        assert running.info.tags["agent_name"] == "slow"
        assert running.info.tags["mlflow.traceName"] == "9/5/1"
        process.kill()
    ended = wait_for_state(uri, project, "ERROR", 30)
    assert tree_of(ended) == {"rollout_trace": {"turn": 1}}
    assert ended.info.tags["rollout_n"] == "1"
    (root,) = [span for span in ended.data.spans if span.parent_id is None]
    assert root.status.description == "process ended before the trajectory did"
    assert ended.info.execution_duration == root.end_time_ns // 10**6 - root.start_time_ns // 10**6


@pytest.mark.parametrize(
    "matching",
    [
        "feedback.reward > 0.2 AND feedback.reward < 0.3",
        "feedback.turns >= 3 AND feedback.turns < 4",
        "feedback.solved = 'true'",
        "feedback.cheated = 'false'",
        "feedback.verdict = 'too long'",
        "feedback.style > 0.8",
        "tags.reward = '0.25'",
    ],
)
def test_scores_of_every_type_are_found_by_search(scored: tuple[str, str], matching: str) -> None:
    """Numbers compare as numbers, bools and labels as text."""
    uri, project = scored
    [found] = traces_of(uri, project, matching)
    assert found.info.tags["sample_index"] == "1"


def test_score_keeps_its_value_type_and_comment(scored: tuple[str, str]) -> None:
    """Each name is one Feedback with the value, type and comment of the newest score."""
    uri, project = scored
    [found] = traces_of(uri, project, "tags.sample_index = '1'")
    assert {one.name: (one.value, type(one.value), one.rationale) for one in found.info.assessments} == {
        "reward": (0.25, float, "half of it is right"),
        "turns": (3.0, float, None),
        "solved": (True, bool, "the tests pass"),
        "cheated": (False, bool, None),
        "verdict": ("too long", str, None),
        "style": (0.9, float, "second thoughts"),
    }
    assert len(found.info.assessments) == 6


@pytest.mark.parametrize(
    "matching", ["feedback.reward > 0.8", "tags.reward = '0.9'", "tags.filtered = 'True'"]
)
def test_score_of_a_delivered_trajectory_is_feedback_and_tag(scored: tuple[str, str], matching: str) -> None:
    """The newest score counts, and state, duration and spans stay unchanged."""
    uri, project = scored
    [found] = traces_of(uri, project, matching)
    assert {one.name: (one.value, one.rationale) for one in found.info.assessments} == {
        "reward": (0.9, "on second thoughts"),
        "filtered": (True, None),
    }
    [root] = found.data.spans
    assert found.info.tags["sample_index"] == "3"
    assert found.info.state.value == "OK"
    assert found.info.execution_duration == root.end_time_ns // 10**6 - root.start_time_ns // 10**6


@pytest.fixture(scope="module", params=["server", "database"])
def scored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Tracking URI and project of two trajectories with scores."""
    uri, project = str(request.getfixturevalue(f"{request.param}_uri")), "scores of every kind"
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "mlflow",
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path_factory.mktemp("spool")),
        "MLFLOW_TRACKING_URI": uri,
        "OTEL_ROLLOUT_PROJECT": project,
    }
    command = [sys.executable, "-m", "tests.mlflow.programs.scores_of_every_type"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return uri, project


def wait_for_state(uri: str, project: str, state: str, seconds: float) -> Any:
    """Wait until the project's trajectory of step 9 is in a state, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if MlflowClient(uri).get_experiment_by_name(project):
            for trace in traces_of(uri, project, "tags.step = '9'"):
                if trace.info.state.value == state:
                    return trace
        time.sleep(0.3)
    raise AssertionError(f"no trace in state {state} within {seconds} s")


def test_demo_fills_mlflow_with_searchable_trajectories(
    uri: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """`otel-rollout demo` ends with lost: 0.

    Each trajectory is found by step, sample and n.
    """
    environment.pop("OTEL_TRACES_EXPORTER")
    environment.pop("OTEL_ROLLOUT_PROJECT")
    command = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "demo"]
    options = ["--steps", "2", "--samples", "2", "--n", "2", "--tracking-uri", uri]
    ran = run_program([*command, *options], env=environment, cwd=tmp_path, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "lost: 0" in ran.stdout
    assert ("mlflow server --backend-store-uri sqlite:///" in ran.stdout) == uri.startswith("sqlite")
    assert_table_has_every_span(tmp_path / "rollouts", ran.stdout)
    step_1 = traces_of(uri, "otel-rollout-demo", "tags.step = '1' AND tags.validate = 'False'")
    identities = Counter((trace.info.tags["sample_index"], trace.info.tags["rollout_n"]) for trace in step_1)
    assert set(identities.values()) == {1}
    assert len(identities) == 4
    for trace in step_1:
        (root,) = tree_of(trace).items()
        assert root[0] == "rollout_trace"
        assert root[1]["ToolAgentLoop.run"] == 1
        assert trace.info.tags["reward"]
        assert trace.info.trace_metadata["mlflow.trace.session"].startswith("step 1 - ")
        assert_one_identity(trace)
        names = Counter(span.name for span in trace.data.spans)
        assert names["ScriptedServer.generate"] == names["ToolAgentLoop.generate"] > 0
    parents = {
        (span.name, by_id[span.parent_id].name)
        for trace in step_1
        for by_id in [{span.span_id: span for span in trace.data.spans}]
        for span in trace.data.spans
        if span.parent_id
    }
    assert ("ScriptedServer.generate", "ToolAgentLoop.generate") in parents, "the server's actor joined"
    assert ("CalculatorTool.execute", "execute_tool calculator") in parents, "the tool's actor joined"
    types = {span.span_type for trace in step_1 for span in trace.data.spans}
    assert types >= {"AGENT", "CHAIN", "CHAT_MODEL", "TOOL", "EVALUATOR"}


def assert_table_has_every_span(path: Path, printed: str) -> None:
    """Check that the rollout table has each recorded span, and that the demo ends with what to type next."""
    recorded, delivered = re.search(r"(\d+) spans recorded .*, (\d+) delivered to delta", printed).groups()
    assert len(otel_rollout.open_table(str(path)).spans) == int(recorded) == int(delivered)
    lines = printed.partition("Look at them:\n")[2].splitlines()
    commands = (line.partition("  #")[0] for line in lines)
    view, report, show = (command.split()[1:] for command in commands if "otel-rollout" in command)
    assert (view, report, show[0]) == (["view"], ["report"], "show")
    assert otel_rollout.open_table(str(path)).trajectory(show[1]).scores["reward"] is not None
    assert "http" not in printed.partition("Look at them:")[2], "addresses are behind --verbose"


def assert_one_identity(trace: Any) -> None:
    """Check that every span has the trajectory's identity with its types."""
    names = [
        f"rollout.{name}" for name in ("step", "sample_index", "rollout_n", "validate", "experiment_name")
    ]
    identities = {
        tuple((type(span.attributes[name]), span.attributes[name]) for name in names)
        for span in trace.data.spans
    }
    assert len(identities) == 1
