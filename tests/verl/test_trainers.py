"""Both of verl's trainers on Ray, through its launcher, its workers, tools and rewards, into MLflow.

Three jobs run the same rollouts: traced, without tracing, and traced with what can break broken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.verl.script import AGENTS

ROOT = Path(__file__).parents[2]
SECONDS = 900
BOTH = {"legacy": (1, 2), "v1": (11, 12)}
"""Trainer → its steps in the job."""


class Job:
    """A job that has run."""

    def __init__(
        self, directory: Path, environment: dict[str, str], trainers: str, harm: bool, *overrides: str
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "MLFLOW_TR", "WANDB_"))}
        arguments = [str(directory), trainers, str(harm), *overrides]
        with (directory / "log").open("wb") as log:
            ran = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "tests.verl.job", *arguments],
                cwd=ROOT,
                env={
                    **kept,
                    "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
                    "PYTHONPATH": str(ROOT),
                    **environment,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
            )
        self.log = (directory / "log").read_text(errors="replace")
        assert ran.returncode == 0, self.log[-5000:]
        self.outputs: dict[str, Any] = json.loads((directory / "outputs.json").read_text())


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Traced, as ``trace.backend=mlflow trace.token2text=True trainer.logger=[mlflow]`` alone says."""
    directory = tmp_path_factory.mktemp("traced")
    return Job(
        directory,
        {"MLFLOW_TRACKING_URI": f"sqlite:///{directory}/mlflow.db"},
        "legacy,v1",
        False,
        "trainer.logger=[mlflow]",
        "actor_rollout_ref.rollout.trace.backend=mlflow",
        "actor_rollout_ref.rollout.trace.token2text=True",
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Not configured."""
    return Job(tmp_path_factory.mktemp("plain"), {}, "legacy,v1", False, "trainer.logger=[]")


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The default trainer, traced to a server that does not exist, with a tokenizer that raises."""
    return Job(
        tmp_path_factory.mktemp("harmed"),
        {
            "OTEL_TRACES_EXPORTER": "mlflow",
            "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
            "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "1",
            "OTEL_ROLLOUT_FORWARDER_LINGER": "1",
        },
        "v1",
        True,
        "trainer.logger=[]",
        "actor_rollout_ref.rollout.trace.token2text=True",
    )


@pytest.fixture(scope="module")
def traces(traced: Job) -> list[Any]:
    """What the traced job left in MLflow, read with its own client."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{traced.directory}/mlflow.db")
    experiment = client.get_experiment_by_name("verl-tests")
    assert experiment is not None, traced.log[-5000:]
    return list(client.search_traces(locations=[experiment.experiment_id], max_results=500))


def _tags(trace: Any) -> tuple[str, ...]:
    return tuple(trace.info.tags[name] for name in ("step", "sample_index", "rollout_n", "validate"))


@pytest.mark.parametrize("trainer", BOTH)
def test_every_trajectory_has_a_trace_of_its_own(traces: list[Any], trainer: str) -> None:
    """Four siblings of each sample in each step, and the validation; each once, in either trainer."""
    first, second = BOTH[trainer]
    steps = (str(first), str(second))
    expected = [(step, str(index), str(n), "False") for step in steps for index in AGENTS for n in range(4)]
    expected += [(str(second), str(index), "0", "True") for index in (0, 1)]
    found = Counter(_tags(trace) for trace in traces if int(trace.info.tags["step"]) in (first, second))
    assert found == Counter(expected)


@pytest.mark.parametrize("trainer", BOTH)
def test_every_trajectory_is_complete(traces: list[Any], trainer: str) -> None:
    """Run, model calls, parsing, tools and the engine's own spans: one tree with one root."""
    for trace in traces:
        if int(trace.info.tags["step"]) not in BOTH[trainer]:
            continue
        spans = trace.data.spans
        ids = {span.span_id for span in spans}
        assert len([span for span in spans if span.parent_id is None]) == 1
        assert all(span.parent_id in ids for span in spans if span.parent_id)
        names = Counter(span.name for span in spans)
        index = int(trace.info.tags["sample_index"])
        turns = {0: 2, 1: 2, 2: 2, 3: 3, 4: 1}[index]
        generate = "LLMServerClient" if trainer == "legacy" else "FullyAsyncLLMServerClient"
        assert names[f"{generate}.generate"] == turns
        resumed = trainer == "v1" and index == 0 and trace.info.tags["validate"] == "False"
        attempts = turns + resumed
        assert names["engine.forward"] == attempts
        assert names["compute_score"] == 1
        tools = {0: ["add"], 1: ["note"], 2: ["broken"], 3: ["nowhere", "add"], 4: []}[index]
        assert {n: c for n, c in names.items() if n.startswith("execute_tool")} == {
            f"execute_tool {tool}": 1 for tool in tools
        }
        run = "SingleTurnAgentLoop.run" if index == 4 else "ToolAgentLoop.run"
        assert names[run] == 1
        by_name = {span.name: span for span in spans}
        assert "response_text" in by_name[run].outputs
        assert by_name["engine.forward"].parent_id in {
            span.span_id for span in spans if span.name == f"{generate}.generate"
        }


def test_tags_say_what_verl_knows(traces: list[Any]) -> None:
    """Agent, group, policy versions and turns; the verl project is the experiment."""
    for trace in traces:
        tags = trace.info.tags
        assert tags["agent_name"] == AGENTS[int(tags["sample_index"])]
        kind = "val" if tags["validate"] == "True" else "train"
        assert tags["group_id"] == f"{kind}{tags['step']}q{tags['sample_index']}"
        assert (tags["policy_version_min"], tags["policy_version_max"]) == ("7", "7")
        assert tags["experiment_name"] == "scripted"
        assert int(tags["num_turns"]) >= 2


def test_rewards_are_assessments(traces: list[Any]) -> None:
    """``reward_score`` and each scalar of ``reward_extra_info`` is on its trajectory."""
    for trace in traces:
        given = {assessment.name: assessment.value for assessment in trace.info.assessments}
        right = trace.info.tags["sample_index"] in ("0", "1")
        assert given["reward"] == (1.0 if right else 0.0)
        assert given.keys() >= {"reward", "acc", "answer", "score"}


def test_failed_calls_are_errors(traces: list[Any]) -> None:
    """The tool that raises, the one that does not exist, and arguments that are no object."""
    states = Counter(
        (span.name, span.status.status_code.value)
        for trace in traces
        for span in trace.data.spans
        if span.name.startswith("execute_tool") and trace.info.tags["sample_index"] in ("2", "3")
    )
    assert states == {
        ("execute_tool broken", "ERROR"): 16,
        ("execute_tool nowhere", "ERROR"): 16,
        ("execute_tool add", "ERROR"): 16,
    }


def test_traces_are_linked_to_verls_run(traces: list[Any], traced: Job) -> None:
    """verl starts its MLflow run after its workers; all traces belong to it."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{traced.directory}/mlflow.db")
    experiment = client.get_experiment_by_name("verl-tests")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    linked = client.search_traces(
        locations=[experiment.experiment_id], run_id=run.info.run_id, max_results=500
    )
    assert {trace.info.trace_id for trace in linked} == {trace.info.trace_id for trace in traces}


def test_tracing_changes_no_output(traced: Job, plain: Job) -> None:
    """Responses, masks, rewards and turns are those of the same job without tracing."""
    assert traced.outputs == plain.outputs
    assert len(plain.outputs["legacy"][0]["responses"]) == 20
    assert len(plain.outputs["v1"]) == 42


def test_what_breaks_in_tracing_changes_no_output(harmed: Job, plain: Job) -> None:
    """A dead backend, and a tokenizer that raises."""
    assert harmed.outputs["v1"] == plain.outputs["v1"]


def test_what_breaks_is_said(harmed: Job) -> None:
    """Once per process, with the reason."""
    assert "decoding tokens for token2text" in harmed.log
    assert "this tokenizer cannot decode" in harmed.log
