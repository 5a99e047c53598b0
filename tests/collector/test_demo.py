"""The demo on Ray, through agent and gateway, into MLflow and Arize Phoenix.

Once the forwarder sends it to the agent; once the agent reads it out of the spool, and nobody sends anything.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.turns.context_diff import restored
from tests.collector.support import ROOT, Collector, get, running_collectors, training_environment
from tests.mlflow_server import running_server
from tests.ports import free_port
from tests.ray_start import run_program
from tests.spool_reader import Recorded, read_directory
from tests.waiting import wait_for

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what MLflow's own imports warn about is not ours to fix
    from mlflow import MlflowClient

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)

PHOENIX = ROOT / ".venv-phoenix" / "bin" / "phoenix"
DEMO = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "demo"]


@dataclass(frozen=True)
class Stack:
    """A gateway before MLflow, with experiments by number, and Phoenix."""

    gateway: Collector
    mlflow: str
    training: str
    validation: str
    phoenix: str


@dataclass(frozen=True)
class Demo:
    """What a run of the demo has printed and recorded, and the agent it went through."""

    printed: str
    recorded: list[Recorded]
    agent: Collector

    @property
    def experiment(self) -> str:
        """Its `rollout.experiment_name`."""
        (name,) = {span.attributes["rollout.experiment_name"] for span in self.recorded}
        return str(name)

    def trees(self, only: Callable[[Recorded], bool] = lambda _: True) -> dict[str, dict[str, str]]:
        """MLflow's id of each trajectory → its spans' ids → their parents' ids."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for span in filter(only, self.recorded):
            parent = span.span.parent_span_id.hex()
            found[f"tr-{span.span.trace_id.hex()}"][span.span.span_id.hex()] = parent
        return dict(found)


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """A Phoenix server that is starting.

    A function that waits for it and says where it is.
    """
    assert PHOENIX.exists(), "make .venv-phoenix/.ready installs Phoenix"
    place = tmp_path_factory.mktemp("phoenix")
    uri = f"http://127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": uri.rpartition(":")[2],
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(place),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    log = place / "phoenix.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [PHOENIX, "serve"], env=environment, stdout=out, stderr=out, start_new_session=True
        )

    def healthy() -> str | None:
        assert server.poll() is None, log.read_text()[-3000:]
        return get(f"{uri}/healthz")

    def ready() -> str:
        wait_for(lambda: healthy() is not None, 180, "Phoenix")
        return uri

    try:
        yield ready
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture(scope="module")
def start(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Collector]]:
    """A function that starts Collectors, which end with these tests."""
    with running_collectors(binary, tmp_path_factory.mktemp("collectors")) as started:
        yield started


@pytest.fixture(scope="module")
def mlflow_uri(phoenix: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MLflow server, which starts while Phoenix does."""
    uri = f"http://127.0.0.1:{free_port()}"
    with running_server(uri, tmp_path_factory.mktemp("mlflow")):
        yield uri


@pytest.fixture(scope="module")
def stack(phoenix: Callable[[], str], mlflow_uri: str, start: Callable[..., Collector]) -> Stack:
    """A gateway before Phoenix and MLflow, where validation is apart."""
    client = MlflowClient(mlflow_uri)
    training, validation = (client.create_experiment(name) for name in ("training", "validation"))
    gateway = start(
        *("gateway.yaml", "to-mlflow.yaml", "to-mlflow-split.yaml", "to-otlp.yaml"),
        MLFLOW_TRACKING_URI=mlflow_uri,
        MLFLOW_EXPERIMENT_ID=training,
        MLFLOW_VALIDATION_EXPERIMENT_ID=validation,
        BACKEND_ENDPOINT=phoenix(),
    )
    return Stack(gateway, mlflow_uri, training, validation, phoenix())


@pytest.fixture(scope="module")
def sent(stack: Stack, start: Callable[..., Collector], tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo, sent to the agent by the forwarder."""
    agent = start("agent.yaml", GATEWAY_ENDPOINT=stack.gateway.endpoint)
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": agent.endpoint}
    return run_demo("otlp", variables, agent, tmp_path_factory.mktemp("sent"))


@pytest.fixture(scope="module")
def tailed(
    stack: Stack,
    start: Callable[..., Collector],
    tailing_binary: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Demo:
    """The demo, read out of its spool by the agent."""
    place = tmp_path_factory.mktemp("tailed")
    agent = start(
        *("agent.yaml", "agent-tail.yaml"),
        program=tailing_binary,
        GATEWAY_ENDPOINT=stack.gateway.endpoint,
        OTEL_ROLLOUT_SPOOL_DIR=str(place / "spool"),
    )
    return run_demo("spool", {"OTEL_ROLLOUT_KEEP": "false"}, agent, place)


def run_demo(backend: str, variables: dict[str, str], agent: Collector, place: Path) -> Demo:
    """Two steps of two prompts, two trajectories each, and validation of four prompts.

    It has to end well.
    """
    command = [*DEMO, "--backend", backend, "--steps", "2", "--samples", "2", "--n", "2"]
    environment = training_environment(place / "spool") | variables
    ran = run_program(command, env=environment, cwd=place, timeout=400)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return Demo(ran.stdout, read_directory(place / "spool"), agent)


def traces(uri: str, experiment: str, search: str) -> list[Any]:
    """What MLflow's search finds, with spans."""
    found, token = [], None
    while True:
        page = MlflowClient(uri).search_traces(
            locations=[experiment], filter_string=search, max_results=100, page_token=token
        )
        found += page
        if (token := page.token) is None:
            return found


@pytest.mark.parametrize("way", ["sent", "tailed"])
def test_the_demo_arrives_in_mlflow(way: str, stack: Stack, request: pytest.FixtureRequest) -> None:
    """Every trajectory is there, a whole tree, named, found by its tags.

    Validation in its own experiment.
    """
    demo: Demo = request.getfixturevalue(way)
    (recorded,) = re.findall(r"(\d+) spans recorded .* lost: 0", demo.printed)
    assert len(demo.recorded) == int(recorded)
    this_run = f"tags.experiment_name = '{demo.experiment}'"

    def arrived() -> dict[str, Any] | None:
        found = [
            *traces(stack.mlflow, stack.training, this_run),
            *traces(stack.mlflow, stack.validation, this_run),
        ]
        trees = {t.info.trace_id: {s.span_id: s.parent_id or "" for s in t.data.spans} for t in found}
        return {t.info.trace_id: t for t in found} if trees == demo.trees() else None

    by_id = wait_for(arrived, 60, "every span of every trajectory, below its parent")
    assert len(by_id) == 8 + 4
    of_validation = demo.trees(lambda span: span.attributes.get("rollout.validate") is True)
    assert len(of_validation) == 4
    there = traces(stack.mlflow, stack.validation, f"{this_run} AND tags.validate = 'True'")
    assert {trace.info.trace_id for trace in there} == set(of_validation)

    wanted = f"{this_run} AND tags.step = '1' AND tags.validate = 'False'"
    step_1 = traces(stack.mlflow, stack.training, wanted)
    identities = {(trace.info.tags["sample_index"], trace.info.tags["rollout_n"]) for trace in step_1}
    assert len(step_1) == len(identities) == 4
    assert all(0.0 <= float(trace.info.tags["reward"]) <= 1.0 for trace in step_1)
    one = f"{this_run} AND tags.step = '1' AND tags.sample_index = '{step_1[0].info.tags['sample_index']}'"
    assert len(traces(stack.mlflow, stack.training, one)) == 2, "siblings"
    for trace in by_id.values():
        tags = trace.info.tags
        path = f"{tags['step']}/{tags['sample_index']}/{tags['rollout_n']}"
        assert tags["mlflow.traceName"] == ("validation/" if tags["validate"] == "True" else "") + path
    assert {trace.info.trace_metadata["mlflow.trace.session"] for trace in by_id.values()} == {
        f"step 1 - {demo.experiment}",
        f"step 2 - {demo.experiment}",
        f"step 2 (validation) - {demo.experiment}",
    }
    kinds = {span.span_type for trace in step_1 for span in trace.data.spans}
    assert kinds >= {"AGENT", "CHAT_MODEL", "TOOL", "EVALUATOR"}
    assert step_1[0].data.request is not None


def test_nobody_sends_what_the_agent_reads(tailed: Demo) -> None:
    """The tailing agent was sent nothing: all of it came out of the spool."""
    counted = Counter()
    for name, labels, value in tailed.agent.own_metrics():
        counted[name, labels.get("receiver")] += int(value)
    assert counted["otelcol_exporter_sent_spans", None] == len(tailed.recorded)
    assert counted["otelcol_receiver_accepted_spans", "otlp"] == 0


def spans_in_phoenix(uri: str) -> dict[str, dict[str, Any]]:
    """Span id → span, of the default project."""
    found, cursor = [], ""
    while True:
        page = json.loads(get(f"{uri}/v1/projects/default/spans?limit=500{cursor}") or '{"data": []}')
        found += page["data"]
        if not page.get("next_cursor"):
            return {span["context"]["span_id"]: span for span in found}
        cursor = f"&cursor={page['next_cursor']}"


def whole_input(spans: dict[str, dict[str, Any]], span_id: str) -> Any:
    """A span's input; of a prompt that is told by what its turn adds, the whole."""
    given = json.loads(spans[span_id]["attributes"].get("input.value", "null"))
    prompt = given.get("prompt_ids") if isinstance(given, dict) else None
    if isinstance(prompt, dict):
        before = prompt["continues"]
        answer = json.loads(spans[before]["attributes"]["output.value"])["token_ids"]
        earlier = [*whole_input(spans, before)["prompt_ids"], *answer]
        given["prompt_ids"] = restored(earlier, prompt["shared"], prompt["new"])
    return given


def test_phoenix_shows_the_demos_conversations(stack: Stack, sent: Demo) -> None:
    """Every span of the demo is there with its kind, input and output.

    Failures are seen as such.
    """
    recorded = {span.span.span_id.hex(): span for span in sent.recorded}
    wait_for(lambda: set(spans_in_phoenix(stack.phoenix)) >= set(recorded), 60, "every span in Phoenix")
    shown = spans_in_phoenix(stack.phoenix)
    for span_id, span in recorded.items():
        there = shown[span_id]
        assert there["name"] == span.name
        assert there["span_kind"] == span.attributes.get("openinference.span.kind", "UNKNOWN")
        assert (there["status_code"] == "ERROR") == (span.span.status.code == 2)
        assert whole_input(shown, span_id) == json.loads(span.attributes.get("input.value", "null"))
        assert there["attributes"].get("output.value") == span.attributes.get("output.value")
    kinds = Counter(shown[span_id]["span_kind"] for span_id in recorded)
    assert min(kinds["AGENT"], kinds["LLM"], kinds["TOOL"], kinds["EVALUATOR"]) > 0
