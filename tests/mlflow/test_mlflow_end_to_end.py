"""From a job on Ray to MLflow, through real processes: recorder, forwarder, server or database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient


@pytest.fixture
def environment(uri: str, project: str) -> dict[str, str]:
    """The environment of a user who configures everything by variables."""
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
    """Names of a trace's spans, nested; fails unless it is one whole tree."""
    spans = trace.data.spans
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans), "a span twice"
    roots = [span for span in spans if span.parent_id is None]
    assert len(roots) == 1
    assert all(span.parent_id in ids for span in spans if span is not roots[0]), "an orphan"

    def below(parent: Any) -> Counter[str]:
        return Counter(span.name for span in spans if span.parent_id == parent.span_id)

    return {roots[0].name: below(roots[0])}


def test_every_ended_span_survives_the_end_of_the_job(
    uri: str, project: str, environment: dict[str, str]
) -> None:
    """After ray.kill of all actors and ray.shutdown each trajectory is in MLflow, whole, exactly once."""
    script = Path(__file__).with_name("killed_job.py")
    ran = subprocess.run(
        [sys.executable, str(script), "4", "5", "20"],
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


def test_the_demo_fills_mlflow_with_searchable_trajectories(
    uri: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """`otel-rollout demo` ends with lost: 0, and each of its trajectories is found by step, sample and n."""
    environment.pop("OTEL_TRACES_EXPORTER")
    environment.pop("OTEL_ROLLOUT_PROJECT")
    command = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "demo"]
    options = ["--steps", "2", "--samples", "2", "--n", "2", "--tracking-uri", uri]
    ran = subprocess.run(
        command + options,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "lost: 0" in ran.stdout
    step_1 = traces_of(uri, "otel-rollout-demo", "tags.step = '1' AND tags.validate = 'False'")
    identities = Counter((trace.info.tags["sample_index"], trace.info.tags["rollout_n"]) for trace in step_1)
    assert set(identities.values()) == {1}
    assert len(identities) == 4
    for trace in step_1:
        (root,) = tree_of(trace).items()
        assert root[0] == "rollout_trace"
        assert root[1]["ToolAgentLoop.run"] == 1
        assert trace.info.tags["reward"]
        assert trace.info.trace_metadata["mlflow.trace.session"].endswith("/step 1")
    (one,) = traces_of(uri, "otel-rollout-demo", "tags.step = '2' AND tags.rollout_n = '1'")[:1]
    assert {span.span_type for span in one.data.spans} >= {"AGENT", "CHAIN", "EVALUATOR"}
