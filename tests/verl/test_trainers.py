"""Both of verl's trainers on Ray, from its launcher to MLflow.

Two jobs run equal rollouts (:mod:`tests.verl.programs.training_job`), one with tracing, one without. In both
jobs a tool raises, a trajectory is cancelled, and in the last step the tokenizer that token2text uses raises.
One of the two backends of the traced job is dead.
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

from tests.ray_start import ray_gave_up
from tests.verl.script import AGENTS, QUESTIONS, UNANSWERED
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
SECONDS = 400
STEPS = {"legacy": (1, 2, 3, 4), "v1": (11, 12, 13, 14)}
"""Trainer → its steps in the job: two, the second with a validation; a cancelled one; a broken tokenizer."""
MORE_GROUPS = {"legacy": 5, "v1": 15}
"""Trainer → its step with twice as many groups as are recorded of one."""
LIMIT = len(QUESTIONS)
"""Groups that are recorded of a step: as many as the other steps have."""


class Job:
    """A job that has run."""

    def __init__(self, directory: Path, environment: dict[str, str], *overrides: str) -> None:
        self.directory = directory
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "MLFLOW_TR", "WANDB_"))}
        self.environment = {
            **kept,
            "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self.log = ""
        command = ["-W", "ignore", "-m", "tests.verl.programs.training_job", str(directory), *overrides]
        ran = self.run(*command)
        if ran != 0 and ray_gave_up(self.log):
            ran = self.run(*command)
        assert ran == 0, self.log[-5000:]
        self.outputs: dict[str, Any] = json.loads((directory / "outputs.json").read_text())

    def run(self, *arguments: str) -> int:
        """Run Python in the job's environment."""
        with (self.directory / "log").open("wb") as log:
            ran = subprocess.run(
                [sys.executable, *arguments],
                cwd=self.directory,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
            )
        self.log += (self.directory / "log").read_text(errors="replace")
        return ran.returncode

    def forward(self, exporter: str) -> bool:
        """Deliver what the job has left on disk; return whether all was delivered."""
        self.environment["OTEL_ROLLOUT_FORWARDER_LINGER"] = str(SECONDS)
        return self.run("-c", FORWARD, "forward", "--to", exporter) == 0


FORWARD = "from otel_rollout.cli import app; app()"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run the job with verl's flags, to MLflow and to a Collector that does not exist."""
    directory = tmp_path_factory.mktemp("traced")
    job = Job(
        directory,
        {
            "MLFLOW_TRACKING_URI": f"sqlite:///{directory}/mlflow.db",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            # or the job would wait for the one that is dead
            "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "1",
            "OTEL_ROLLOUT_FORWARDER_LINGER": "1",
            "OTEL_ROLLOUT_SAMPLE_GROUPS": str(LIMIT),
        },
        "trainer.logger=[mlflow]",
        "actor_rollout_ref.rollout.trace.backend='mlflow,otlp'",
        "actor_rollout_ref.rollout.trace.token2text=True",
    )
    wait_for(lambda: job.forward("mlflow"), SECONDS, "delivery to MLflow")
    return job


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run the job without configuration."""
    return Job(tmp_path_factory.mktemp("plain"), {}, "trainer.logger=[]")


@pytest.fixture(scope="module")
def traces(traced: Job) -> list[Any]:
    """Return the traces that the traced job has delivered to MLflow."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{traced.directory}/mlflow.db")
    experiment = client.get_experiment_by_name("verl-tests")
    assert experiment is not None, traced.log[-5000:]
    return list(client.search_traces(locations=[experiment.experiment_id], max_results=500))


@pytest.fixture(scope="module")
def answered(traces: list[Any]) -> list[Any]:
    """Return traces that were not cancelled, without the steps with more groups."""
    return [
        trace
        for trace in traces
        if trace.info.tags["sample_index"] != str(UNANSWERED)
        and int(trace.info.tags["step"]) not in MORE_GROUPS.values()
    ]


def _tags(trace: Any) -> tuple[str, ...]:
    return tuple(trace.info.tags[name] for name in ("step", "sample_index", "rollout_n", "validate"))


@pytest.mark.parametrize("trainer", STEPS)
def test_every_trajectory_has_one_trace(traces: list[Any], trainer: str) -> None:
    """In either trainer, each sample's siblings and the validation are there once."""
    first, second, third, fourth = map(str, STEPS[trainer])
    expected = [
        (step, str(index), str(n), "False")
        for step in (first, second, fourth)
        for index in AGENTS
        for n in range(4)
    ]
    expected += [(second, str(index), "0", "True") for index in (0, 1)]
    expected += [(third, str(UNANSWERED), "0", "False")]
    found = Counter(_tags(trace) for trace in traces if int(trace.info.tags["step"]) in STEPS[trainer])
    assert found == Counter(expected)


@pytest.mark.parametrize("trainer", STEPS)
def test_limit_of_groups_is_exact_for_all_workers_together(traces: list[Any], trainer: str) -> None:
    """Of a larger batch, as many whole groups are recorded as the limit allows."""
    step = str(MORE_GROUPS[trainer])
    groups = Counter(t.info.tags["sample_index"] for t in traces if t.info.tags["step"] == step)
    assert len(groups) == LIMIT
    assert set(groups.values()) == {4}


@pytest.mark.parametrize("trainer", STEPS)
def test_every_trajectory_is_one_complete_tree(answered: list[Any], trainer: str) -> None:
    """Run, model calls, parsing, tools and the engine's own spans have one root."""
    for trace in answered:
        if int(trace.info.tags["step"]) not in STEPS[trainer]:
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
        assert "response_text" in by_name[run].outputs  # its own tokenizer does not raise
        assert by_name["engine.forward"].parent_id in {
            span.span_id for span in spans if span.name == f"{generate}.generate"
        }


def test_tags_have_agent_group_policy_versions_and_turns(answered: list[Any]) -> None:
    """The verl project is the experiment."""
    for trace in answered:
        tags = trace.info.tags
        assert tags["agent_name"] == AGENTS[int(tags["sample_index"])]
        kind = "val" if tags["validate"] == "True" else "train"
        assert tags["group_id"] == f"{kind}{tags['step']}q{tags['sample_index']}"
        assert (tags["policy_version_min"], tags["policy_version_max"]) == ("7", "7")
        assert tags["experiment_name"] == "scripted"
        assert int(tags["num_turns"]) >= 2


def test_rewards_are_assessments(answered: list[Any]) -> None:
    """``reward_score`` and each scalar of ``reward_extra_info`` is on its trajectory."""
    for trace in answered:
        given = {assessment.name: assessment.value for assessment in trace.info.assessments}
        right = trace.info.tags["sample_index"] in ("0", "1")
        assert given["reward"] == (1.0 if right else 0.0)
        assert given.keys() >= {"reward", "acc", "answer", "score"}


def test_failed_tool_calls_have_status_error(answered: list[Any]) -> None:
    """A tool raises, one does not exist, and arguments are no object."""
    states = Counter(
        (span.name, span.status.status_code.value)
        for trace in answered
        for span in trace.data.spans
        if span.name.startswith("execute_tool") and trace.info.tags["sample_index"] in ("2", "3")
    )
    assert states == {
        ("execute_tool broken", "ERROR"): 24,
        ("execute_tool nowhere", "ERROR"): 24,
        ("execute_tool add", "ERROR"): 24,
    }


def test_traces_are_linked_to_verls_mlflow_run(traces: list[Any], traced: Job) -> None:
    """verl starts the run after its workers."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{traced.directory}/mlflow.db")
    experiment = client.get_experiment_by_name("verl-tests")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    linked = client.search_traces(
        locations=[experiment.experiment_id], run_id=run.info.run_id, max_results=500
    )
    assert {trace.info.trace_id for trace in linked} == {trace.info.trace_id for trace in traces}


def test_cancelled_trajectories_have_status_error(traces: list[Any]) -> None:
    """In either trainer no span of them stays open."""
    found = [trace for trace in traces if trace.info.tags["sample_index"] == str(UNANSWERED)]
    assert len(found) == len(STEPS)
    for trace in found:
        assert trace.info.state.value == "ERROR"
        states = {span.name: span.status.status_code.value for span in trace.data.spans}
        assert states.pop("engine.forward") != "ERROR"
        assert len(states) == 3
        assert set(states.values()) == {"ERROR"}


@pytest.mark.parametrize("trainer", STEPS)
def test_outputs_are_equal_with_and_without_tracing(traced: Job, plain: Job, trainer: str) -> None:
    """Backend, tool and tokenizer fail, and a trajectory is cancelled."""
    assert traced.outputs[trainer] == plain.outputs[trainer]
    assert plain.outputs[trainer]["cancelled"] == "CancelledError"


def test_compared_outputs_are_complete(plain: Job) -> None:
    """Each trajectory of each step is among them."""
    legacy, v1 = plain.outputs["legacy"], plain.outputs["v1"]
    assert [len(legacy[step]["responses"]) for step in ("1", "2", "tokenizer raises")] == [20, 20, 20]
    assert len(legacy["validation"]["responses"]) == 2
    assert len(legacy["more groups"]["responses"]) == 40
    assert len([name for name in v1 if name.startswith("train")]) == 100
    assert len([name for name in v1 if name.startswith("val")]) == 2


def test_failures_are_logged_with_their_reason(traced: Job) -> None:
    """The tokenizer raises, and a backend is dead."""
    assert "token2text cannot use a tokenizer" in traced.log
    assert "this tokenizer cannot be read" in traced.log
    assert "otlp" in traced.log


def test_job_without_tracing_has_no_spool_and_no_log_line(plain: Job) -> None:
    """A worker has imported the seams and the warning of a late flag, nothing else."""
    assert not (plain.directory / "spool").exists()
    assert "otel-rollout:" not in plain.log
    assert plain.outputs["integrations"] == [
        "otel_rollout.integrations.kit",
        "otel_rollout.integrations.kit.seams",
        "otel_rollout.integrations.verl",
        "otel_rollout.integrations.verl.trace_config",
        "otel_rollout.integrations.vllm",
    ]
