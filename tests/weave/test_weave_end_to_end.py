"""From a job to Weave's server and client through real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from tests.forwarders import forwarders
from tests.local_weave import ENTITY, LocalWeave, where
from tests.mlflow_server import stored
from tests.propagation.programs import every_call_on_ray
from tests.ray_start import run_program
from tests.waiting import wait_for

JOB = Path(__file__).with_name("job.py")


@pytest.fixture
def variables(environment: dict[str, str], project: str) -> dict[str, str]:
    """Variables that configure everything."""
    return {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "weave",
        "OTEL_ROLLOUT_PROJECT": project,
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a FutureWarning of Ray's
    }


@contextmanager
def job(variables: dict[str, str], *arguments: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """A job that has recorded, and a function that ends it and returns its report."""
    command = [sys.executable, str(JOB), *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=variables, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "recorded\n"

        def end(line: str = "") -> dict[str, Any]:
            output, _ = process.communicate(f"{line}\n", timeout=90)
            account: dict[str, Any] = json.loads(output.splitlines()[-1])
            return account

        yield end


def test_no_call_is_lost_or_doubled_in_an_outage_with_a_killed_forwarder(
    weave: LocalWeave, project: str, variables: dict[str, str]
) -> None:
    """With 503s and kill -9 of the forwarder each call is there once."""
    weave.fail("calls/complete", 503, times=2, after=True)
    weave.fail("calls/complete", 503, times=2)
    before = attempts(weave, project)
    with job(variables, "40") as end:
        wait_for(lambda: attempts(weave, project) > before)
        for process in forwarders(variables["OTEL_ROLLOUT_SPOOL_DIR"]):
            os.kill(process, signal.SIGKILL)
        account = end()
    assert (account["recorded"], account["delivered"], account["lost"]) == (120, 120, 0)
    calls = weave.calls(project)
    assert Counter(Counter(call["id"] for call in calls).values()) == {1: 120}
    assert Counter(call["op_name"] for call in calls) == {
        "rollout_trace": 40,
        "calculator": 40,
        "score reward": 40,
    }
    assert len(weave.feedback(project)) == 40


def attempts(weave: LocalWeave, project: str) -> int:
    requests = weave.stats()["requests"]
    return int(requests.get(f"/v2/{ENTITY}/{project}/calls/complete", 0))


def test_rejected_call_goes_to_the_dead_letter_file_and_others_arrive(
    weave: LocalWeave, project: str, variables: dict[str, str]
) -> None:
    """Bisecting finds the calls at fault, and the file has the server's words."""
    with job(variables, "3", "rejected") as end:
        account = end()
    assert (account["recorded"], account["delivered"], account["rejected"]) == (12, 9, 3)
    assert account["lost"] == 0
    names = Counter(call["op_name"] for call in weave.calls(project))
    assert names == {"rollout_trace": 3, "calculator": 3, "score reward": 3, "refused": 3}
    dead_letters = (Path(account["directory"]) / "rejected.weave.jsonl").read_text().splitlines()
    assert len(dead_letters) == 3
    for letter in dead_letters:
        assert "Invalid URI: weave:///not an op" in json.loads(letter)["reason"]
        assert '"name":"weave:///not an op"' in json.loads(letter)["line"]


def test_run_published_after_the_first_traces_is_linked(
    weave: LocalWeave, project: str, variables: dict[str, str]
) -> None:
    """publish_run(weave=...) ties stored trajectories to the run.

    Later calls belong to it.
    """
    run = f"{ENTITY}/{project}/run9"
    with job(variables, "3") as end:
        wait_for(lambda: attempts(weave, project) and len(weave.calls(project)) == 9)
        account = end(f"link {run}")
    assert (account["delivered"], account["lost"]) == (11, 0)

    def linked() -> bool:
        by_feedback = [
            f["payload"]["value"] for f in weave.feedback(project) if f["feedback_type"] == "wb_run"
        ]
        by_call = weave.calls(project, filter={"wb_run_ids": [run], "trace_roots_only": True})
        return by_feedback == [run] * (4 - len(by_call)) and len(by_call) <= 1

    wait_for(linked)
    assert len(weave.calls(project)) == 11


def test_spans_without_an_api_key_wait_on_disk(
    weave: LocalWeave, project: str, variables: dict[str, str]
) -> None:
    """The report says how to log in.

    `otel-rollout forward` delivers once there is a key.
    """
    without = {**variables, "WANDB_API_KEY": "", "NETRC": "/dev/null"}
    with job(without, "2") as end:
        account = end()
    assert (account["delivered"], account["lost"]) == (0, 0)
    assert "wandb login" in account["problem"]

    forward = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "forward"]
    ran = subprocess.run(forward, env=variables, capture_output=True, text=True, timeout=90, check=False)

    assert ran.returncode == 0, ran.stderr
    assert len(weave.calls(project)) == 6


def test_trajectory_is_shown_while_it_runs_and_as_an_error_once_killed(
    weave: LocalWeave, project: str, variables: dict[str, str]
) -> None:
    """The tracker lists it with its identity while it runs.

    Once it is killed, the tracker shows its children too.
    """
    command = [sys.executable, "-m", "tests.programs.long_trajectory"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        running = wait_for_status(weave, project, "running")
        process.kill()
    ended = wait_for_status(weave, project, "error")

    assert running["attributes"]["agent_name"] == "slow"
    assert json.loads(ended["exception"])["message"] == "process ended before the trajectory did"
    assert ended["attributes"]["rollout_n"] == 1
    assert [call["op_name"] for call in weave.children(project, ended["id"])] == ["turn"]
    assert len(weave.calls(project)) == 2


def wait_for_status(weave: LocalWeave, project: str, status: str) -> dict[str, Any]:
    """Wait until the project's trajectory is in a state, and return it."""

    def found() -> dict[str, Any] | None:
        if attempts(weave, project) == 0:  # the project may not exist yet
            return None
        roots = weave.calls(project, query=where(attributes__step=9), filter={"trace_roots_only": True})
        calls = [call for call in roots if call["summary"]["weave"]["status"] == status]
        return calls[0] if len(calls) == len(roots) == 1 else None

    return wait_for(found)


DEMO = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "demo", "--backend", "weave"]


def test_demo_fills_weave_with_searchable_trajectories(
    weave: LocalWeave, variables: dict[str, str], project: str, tmp_path: Path
) -> None:
    """`otel-rollout demo --backend weave` ends with lost: 0.

    Each trajectory is found by its identity.
    """
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_ROLLOUT_PROJECT"):
        variables.pop(name)
    variables["WANDB_PROJECT"] = project
    command = [*DEMO, "--verbose", "--steps", "2", "--samples", "2", "--n", "2"]
    ran = run_program(command, env=variables, cwd=tmp_path, timeout=180)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "lost: 0" in ran.stdout
    assert f"{weave.url}/{ENTITY}/{project}/weave/traces" in ran.stdout
    query = where(attributes__step=1, attributes__validate=False)
    roots = weave.calls(project, query=query, filter={"trace_roots_only": True})
    identities = {(root["attributes"]["sample_index"], root["attributes"]["rollout_n"]) for root in roots}
    assert len(roots) == len(identities) == 4
    assert all(0 <= root["output"]["reward"] <= 1 for root in roots)
    calls = weave.calls(project)
    assert set(Counter(call["id"] for call in calls).values()) == {1}
    name_of = {call["id"]: call["op_name"] for call in calls}
    parents = {(call["op_name"], name_of.get(call["parent_id"])) for call in calls}
    assert ("ScriptedServer.generate", "ToolAgentLoop.generate") in parents, "the server's actor joined"
    assert len(weave.threads(project)) == len({call["trace_id"] for call in calls})


def test_demo_without_an_api_key_ends_before_it_starts_anything(variables: dict[str, str]) -> None:
    """The message says how to log in."""
    without = {**variables, "WANDB_API_KEY": "", "NETRC": "/dev/null"}
    ran = subprocess.run(DEMO, env=without, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "wandb login" in ran.stdout
    assert "Starting Ray" not in ran.stdout


@pytest.mark.filterwarnings("ignore")  # MLflow's client warns of what its database does
def test_ray_program_that_variables_trace_is_whole_everywhere(
    weave: LocalWeave, variables: dict[str, str], project: str, tmp_path: Path
) -> None:
    """One trajectory is one trace in Weave, in MLflow and in the table; the program knows of none of them."""
    mlflow_uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    named = {
        "OTEL_TRACES_EXPORTER": "weave,mlflow,delta",
        "OTEL_ROLLOUT_DELTA_URI": str(tmp_path / "rollouts"),
        "MLFLOW_TRACKING_URI": mlflow_uri,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RAY_AUTH_MODE": "disabled",
    }
    ran = run_program(
        [sys.executable, every_call_on_ray.__file__], env={**variables, **named}, cwd=tmp_path, timeout=240
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    spans = {
        "weave": [(call["trace_id"], call["op_name"]) for call in weave.calls(project)],
        "mlflow": [
            (trace.info.trace_id, span.name)
            for trace in stored(mlflow_uri, project)
            for span in trace.data.spans
        ],
        "table": [
            (row["trace_id"], row["name"])
            for row in otel_rollout.open_table(str(tmp_path / "rollouts")).spans
        ],
    }
    for destination, found in spans.items():
        traces: dict[str, Counter[str]] = {}
        for trace_id, name in found:
            traces.setdefault(trace_id, Counter())[name] += 1
        whole = [every_call_on_ray.OPERATIONS] * every_call_on_ray.TRAJECTORIES
        assert [*traces.values()] == whole, destination
