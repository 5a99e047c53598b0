"""The demo on Ray, through agent and gateway, into a real MLflow server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collector.support import free_port, get
from tests.otlp import read_directory
from tests.waiting import wait_for

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # before MLflow is imported
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what MLflow's own imports warn about is not ours to fix
    from mlflow import MlflowClient

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)

DEMO = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "demo", "--backend", "otlp"]


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real ``mlflow server`` with one worker on a free port."""
    directory = tmp_path_factory.mktemp("mlflow")
    uri = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", uri.rpartition(":")[2], "--backend-store-uri", f"sqlite:///{directory}/mlflow.db"]
    with (directory / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory, start_new_session=True)
    try:
        wait_for(lambda: get(f"{uri}/health"), 180, "an MLflow server")
        yield uri
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # the group: it runs its worker as a child
        server.wait()


def traces(uri: str, experiment: str, search: str = "") -> list[Any]:
    found, token = [], None
    while True:
        page = MlflowClient(uri).search_traces(
            locations=[experiment], filter_string=search or None, max_results=100, page_token=token
        )
        found += page
        if (token := page.token) is None:
            return found


def test_the_demo_arrives_in_mlflow_through_agent_and_gateway(
    collector: Any, environment: dict[str, str], mlflow_uri: str, tmp_path: Path
) -> None:
    """Every trajectory is there, whole, named, found by its tags; validation in an experiment of its own."""
    client = MlflowClient(mlflow_uri)
    training, validation = (client.create_experiment(name) for name in ("training", "validation"))
    gateway = collector(
        *("gateway.yaml", "to-mlflow.yaml", "to-mlflow-split.yaml"),
        MLFLOW_TRACKING_URI=mlflow_uri,
        MLFLOW_EXPERIMENT_ID=training,
        MLFLOW_VALIDATION_EXPERIMENT_ID=validation,
    )
    agent = collector("agent.yaml", GATEWAY_ENDPOINT=gateway.endpoint)
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = agent.endpoint
    ran = subprocess.run(
        [*DEMO, "--steps", "2", "--samples", "2", "--n", "2"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "lost: 0" in ran.stdout

    recorded = read_directory(tmp_path / "spool")
    sizes = Counter(f"tr-{span.span.trace_id.hex()}" for span in recorded)
    of_validation = {
        f"tr-{span.span.trace_id.hex()}" for span in recorded if span.attributes.get("rollout.validate")
    }

    def arrived() -> dict[str, Any] | None:
        found = traces(mlflow_uri, training) + traces(mlflow_uri, validation)
        by_id = {trace.info.trace_id: trace for trace in found}
        complete = {id_: len(trace.data.spans) for id_, trace in by_id.items()} == sizes
        return by_id if complete else None

    by_id = wait_for(arrived, 60, "every span of every trajectory")
    assert {trace.info.trace_id for trace in traces(mlflow_uri, validation)} == of_validation
    for trace in by_id.values():
        ids = {span.span_id for span in trace.data.spans}
        roots = [span for span in trace.data.spans if span.parent_id is None]
        assert len(roots) == 1
        assert all(span.parent_id in ids for span in trace.data.spans if span is not roots[0]), "an orphan"
        assert trace.info.tags["mlflow.traceName"] == roots[0].name

    step_1 = traces(mlflow_uri, training, "tags.step = '1' AND tags.validate = 'False'")
    identities = {(trace.info.tags["sample_index"], trace.info.tags["rollout_n"]) for trace in step_1}
    assert len(step_1) == len(identities) == 4
    assert all(0.0 <= float(trace.info.tags["reward"]) <= 1.0 for trace in step_1)
    assert len(traces(mlflow_uri, validation, "tags.validate = 'True'")) == len(of_validation)
    (session,) = {trace.info.trace_metadata["mlflow.trace.session"] for trace in step_1}
    assert session.endswith("/step 1")
    kinds = Counter(span.span_type for trace in step_1 for span in trace.data.spans)
    assert kinds["AGENT"] >= 4
    assert kinds["LLM"] > 0
    assert kinds["TOOL"] > 0
    assert step_1[0].data.request is not None
