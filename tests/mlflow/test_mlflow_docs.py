"""docs/mlflow.md is true.

Its code runs, and its table says what the exporter does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow_support import ADMIN, PASSWORD, SecuredServer, stored

from tests.mlflow_server import START_SECONDS, free_port
from tests.sdk_spans import Rollouts, deliver

PAGE = Path(__file__).parent.parent.parent / "docs" / "mlflow.md"
TEXT = PAGE.read_text()
RUN_PAGE = Path(__file__).parent / "programs" / "run_page.py"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_every_python_block_of_the_page_runs_and_every_search_finds(tmp_path: Path) -> None:
    """The page's Python runs in a program that has recorded three siblings."""
    searches = re.findall(r'filter_string="([^"]*)"', TEXT)
    assert len(searches) >= 6
    ran = subprocess.run(
        [sys.executable, str(RUN_PAGE), json.dumps(blocks("python")), json.dumps(searches)],
        env={
            **os.environ,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "OTEL_TRACES_EXPORTER": "mlflow",
            "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
            "OTEL_ROLLOUT_PROJECT": "math-agents",
            "OTEL_ROLLOUT_EXPERIMENT": "grpo",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = [int(number) for number in re.findall(r"^FOUND (\d+)$", ran.stdout, re.MULTILINE)]
    assert len(found) == len(searches)
    assert all(found), dict(zip(searches, found, strict=True))
    assert re.findall(r"^(\d) (\d\.\d) (.*)$", ran.stdout, re.MULTILINE) == [
        (str(n), f"{n / 2:.1f}", f'{{"answer":{n}}}') for n in range(3)
    ]
    assert "OF THE RUN 3\n" in ran.stdout


def bash(script: str, directory: Path, **variables: str) -> subprocess.Popen[str]:
    """A shell that finds the commands of this environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        ["bash", "-eu", "-c", script],
        env={**os.environ, "PATH": path, "MLFLOW_DISABLE_TELEMETRY": "true", **variables},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_server_command_of_the_page_serves_the_file(tmp_path: Path) -> None:
    """The page's first command starts a server on the SQLite file."""
    [command] = [block for block in blocks("bash") if "mlflow server" in block]
    port = str(free_port())
    server = bash(command.replace("5000", port), tmp_path)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, server.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert (tmp_path / "mlflow.db").stat().st_size > 0
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def test_variables_of_the_page_let_the_doctor_into_a_secured_server(
    secured: SecuredServer, tmp_path: Path
) -> None:
    """With an existing address, account and CA, the last commands find no problem."""
    [commands] = [block for block in blocks("bash") if "MLFLOW_TRACKING_USERNAME" in block]
    assert set(re.findall(r"^export (\w+)", commands, re.MULTILINE)) == {
        "OTEL_TRACES_EXPORTER",
        "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_USERNAME",
        "MLFLOW_TRACKING_PASSWORD",
        "MLFLOW_TRACKING_SERVER_CERT_PATH",
    }
    ours = {
        "https://mlflow.example.com": secured.uri,
        "alice": ADMIN,
        "=secret": f"='{PASSWORD}'",
        "ca.pem": secured.ca,
    }
    for example, real in ours.items():
        assert commands.count(example) == 1
        commands = commands.replace(example, real)
    doctor = bash(commands, tmp_path)
    said, _ = doctor.communicate(timeout=60)
    assert doctor.returncode == 0, said


def tag(name: str, value: str) -> Callable[[Any], bool]:
    return lambda trace: trace.info.tags[name] == value


def span(trace: Any, name: str) -> Any:
    return next(span for span in trace.data.spans if span.name == name)


def feedback(trace: Any, name: str = "reward") -> Any:
    return next(one for one in trace.info.assessments if one.name == name)


IDENTITY = {
    "step": "1",
    "sample_index": "7",
    "rollout_n": "0",
    "validate": "False",
    "experiment_name": "grpo",
}
ROWS: dict[str, Callable[[Any], bool]] = {
    "`project_name`": lambda trace: trace.experiment.startswith("project-"),
    "`step`, `sample_index`, `rollout_n`, `validate`, `experiment_name`": lambda trace: (
        IDENTITY.items() <= trace.info.tags.items()
    ),
    "further keyword arguments of `rollout_trace_attr`": tag("agent_name", "solver"),
    '`score("reward", 0.5)`': lambda trace: (
        (feedback(trace).value, trace.info.tags["reward"], span(trace, "score reward").span_type)
        == (0.5, "0.5", "EVALUATOR")
    ),
    "a score of training: `advantage`, `return`, `trained`, `trained_reward`, `trained_step`, "
    "`trained_tokens`, `training_tokens`, `kl_penalty`, `policy_lag`, `importance_ratio`, "
    "`logprob_diff_…`": lambda trace: (
        feedback(trace, "advantage").value == -0.5 and "advantage" not in trace.info.tags
    ),
    "comment of a score": lambda trace: feedback(trace).rationale == "half right",
    "name of the trajectory": tag("mlflow.traceName", "Agent.run"),
    "step and experiment": lambda trace: trace.info.trace_metadata["mlflow.trace.session"] == "step 1 - grpo",
    "input and output of the trajectory": lambda trace: (
        (trace.info.request_preview, json.loads(trace.info.response_preview)) == ("3+4?", {"answer": 7})
    ),
    "arguments and result of an operation": lambda trace: (
        (span(trace, "generate").inputs, span(trace, "generate").outputs) == ({"turn": 1}, {"text": "7"})
    ),
    '`kind="LLM"`, `"TOOL"`, …': lambda trace: (
        (span(trace, "generate").span_type, span(trace, "search").span_type) == ("CHAT_MODEL", "TOOL")
    ),
    "`gen_ai.usage.input_tokens`, `output_tokens`": lambda trace: (
        json.loads(trace.info.trace_metadata["mlflow.trace.tokenUsage"])["total_tokens"]
        == span(trace, "generate").get_attribute("mlflow.chat.tokenUsage")["total_tokens"]
        == 8
    ),
    "an exception": lambda trace: (
        (span(trace, "search").status.status_code.value, span(trace, "search").events[0].name)
        == ("ERROR", "exception")
    ),
    "id of the rollout run": tag("rollout.run.id", "the run"),
    "`OTEL_SERVICE_NAME`": tag("service.name", "trainer"),
    "`MLFLOW_RUN_ID`, or `publish_run(mlflow=…)`": lambda trace: trace.listed_for_run,
}


@dataclass(frozen=True)
class Mapped:
    """Return a trace, its experiment's name, and whether its run has only this trace."""

    info: Any
    data: Any
    experiment: str
    listed_for_run: bool


@pytest.fixture
def mapped(uri: str, project: str, exporter_for: Callable[..., Any]) -> Mapped:
    """A trace with everything that the table names."""
    rollouts = Rollouts(project, {"rollout.run.id": "the run", "service.name": "trainer"})
    as_json = {"input__mime_type": "application/json", "output__mime_type": "application/json"}
    question = '{"messages": [{"role": "system", "content": "Add."}, {"role": "user", "content": "3+4?"}]}'
    with rollouts.span(
        "Agent.run",
        "AGENT",
        rollout__agent_name="solver",
        rollout__score__reward=0.5,
        input__value=question,
        output__value='{"answer": 7}',
        **as_json,
    ):
        with rollouts.span(
            "generate",
            "LLM",
            gen_ai__operation__name="chat",
            gen_ai__usage__input_tokens=3,
            gen_ai__usage__output_tokens=5,
            input__value='{"turn": 1}',
            output__value='{"text": "7"}',
            **as_json,
        ):
            pass
        with pytest.raises(LookupError), rollouts.span("search", "TOOL"):
            raise LookupError
        with rollouts.span(
            "score reward",
            "EVALUATOR",
            gen_ai__evaluation__name="reward",
            gen_ai__evaluation__score__value=0.5,
            gen_ai__evaluation__explanation="half right",
        ):
            pass
        with rollouts.span(
            "score advantage",
            "EVALUATOR",
            gen_ai__evaluation__name="advantage",
            gen_ai__evaluation__score__value=-0.5,
        ):
            pass
    client = MlflowClient(tracking_uri=uri)
    run_id = client.create_run(client.create_experiment(f"{project}-run")).info.run_id
    deliver(exporter_for(uri, run_id=run_id), rollouts.ended())
    [trace] = stored(uri, project)
    experiment = client.get_experiment(trace.info.experiment_id)
    locations = [experiment.experiment_id, client.get_run(run_id).info.experiment_id]
    of_run = client.search_traces(locations=locations, run_id=run_id)
    is_listed = [found.info.trace_id for found in of_run] == [trace.info.trace_id]
    return Mapped(trace.info, trace.data, experiment.name, is_listed)


def test_mapping_table_of_the_page_is_true_and_complete(mapped: Mapped) -> None:
    """Each row is checked on a trace read back, and each check has a row."""
    table = TEXT.partition("## What maps to what")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE)[1:]
    assert rows == list(ROWS)
    wrong = [row for row in rows if not ROWS[row](mapped)]
    assert wrong == [], (mapped.info, [s.to_dict() for s in mapped.data.spans])
