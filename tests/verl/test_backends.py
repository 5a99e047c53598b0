"""Check the contents of the backends that ``trace.backend`` names."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.utils.rollout_trace import RolloutTraceConfig
from verl.utils.tracking import Tracking

import otel_rollout
from otel_rollout.account.report import Report
from tests.conformance.backend import trees
from tests.conformance.mlflow_adapter import MlflowAdapter
from tests.conformance.otlp_adapter import receiver
from tests.local_weave import ENTITY, LocalWeave
from tests.verl import local
from tests.verl.script import AGENTS, QUESTIONS

STEP, SIBLINGS = 3, 4
DELIVERY_SECONDS = 120.0


@pytest.fixture
def project() -> str:
    """Return the name of a new project."""
    return f"verl-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def rollout(fresh_process: None, verl_config: Any, project: str) -> Iterator[Callable[..., Any]]:
    """Return a function that runs samples with siblings, and validation, traced.

    The function calls ``between`` before the validation.
    """
    RolloutTraceConfig.reset()

    async def run(backend: str, between: Callable[[], Any] = lambda: None) -> Report:
        verl_config.trainer.project_name = project
        verl_config.actor_rollout_ref.rollout.trace.backend = backend
        get_ppo_ray_runtime_env(verl_config)  # as verl's driver does before it starts Ray
        worker = local.worker(verl_config)
        await worker.generate_sequences(local.batch(list(QUESTIONS), STEP, SIBLINGS))
        between()
        await worker.generate_sequences(local.batch([0], STEP, 1, validate=True))
        return otel_rollout.shutdown(DELIVERY_SECONDS)

    yield run
    otel_rollout.uninstrument()
    RolloutTraceConfig.reset()


async def test_weave_has_one_tree_of_calls_per_trajectory(
    rollout: Callable[..., Any],
    project: str,
    local_weave: LocalWeave,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Calls have identity, reward, errors and the W&B run.

    verl starts that run after the first traces.
    """
    for name, value in local_weave.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_ENTITY", ENTITY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    runs: list[str] = []

    def start_run() -> None:
        tracking = Tracking(project, "scripted", ["wandb"], {})
        runs.append(tracking.logger["wandb"].run.id)
        tracking.finish()

    report = await rollout("weave", start_run)
    calls = local_weave.calls(project)
    assert (len(calls), report.lost, report.undelivered) == (report.recorded, 0, 0)
    roots = [call for call in calls if call["parent_id"] is None]
    feedback = local_weave.feedback(project)
    _check_identities(roots)
    _check_operations(calls, roots)
    assert _runs_of(roots, feedback) == {f"{ENTITY}/{project}/{runs[0]}": len(roots)}
    rewarded = [entry for entry in feedback if entry["feedback_type"] == "reward"]
    assert Counter(entry["weave_ref"].rpartition("/")[2] for entry in rewarded) == Counter(
        root["id"] for root in roots
    )
    assert {entry["payload"]["value"] for entry in rewarded} == {0.5}


def _check_identities(roots: list[dict[str, Any]]) -> None:
    """Check names and attributes of the root calls."""
    assert Counter(call["display_name"] for call in roots) == Counter(
        [f"{STEP}/{index}/{n}" for index in QUESTIONS for n in range(SIBLINGS)] + [f"validation/{STEP}/0/0"]
    )
    names = ("step", "sample_index", "rollout_n", "validate")
    assert Counter(tuple(root["attributes"][name] for name in names) for root in roots) == Counter(
        [(STEP, index, n, False) for index in QUESTIONS for n in range(SIBLINGS)] + [(STEP, 0, 0, True)]
    )
    for root in roots:
        attributes = root["attributes"]
        kind = "val" if attributes["validate"] else "train"
        assert attributes["group_id"] == f"{kind}{STEP}q{attributes['sample_index']}"
        assert attributes["agent_name"] == AGENTS[attributes["sample_index"]]
        assert (attributes["policy_version_min"], attributes["policy_version_max"]) == (7, 7)
        assert root["output"]["reward"] == 0.5


def _check_operations(calls: list[dict[str, Any]], roots: list[dict[str, Any]]) -> None:
    """Check the tree below a root, a model call, and the calls that failed."""
    assert _names_below(calls, _root_of(roots, 1)) == {
        "ToolAgentLoop.run": {
            "LLMServerClient.generate": {},
            "HermesToolParser.extract_tool_calls": {},
            "execute_tool note": {},
        },
        "compute_score": {},
        "score reward": {},
        "score acc": {},
        "score answer": {},
    }
    generate = next(call for call in calls if call["display_name"] == "LLMServerClient.generate")
    assert generate["attributes"]["weave"]["kind"] == "llm"
    (usage,) = generate["summary"]["usage"].values()
    assert usage["output_tokens"] == len(generate["output"]["token_ids"])
    failed = Counter(call["display_name"] for call in calls if call["exception"])
    assert failed.keys() >= {"execute_tool broken", "execute_tool nowhere", "execute_tool add"}
    assert failed["execute_tool broken"] == SIBLINGS


def _runs_of(roots: list[dict[str, Any]], feedback: list[dict[str, Any]]) -> Counter[str]:
    """Return the W&B run of each root: its own, or one linked by feedback."""
    later = {
        entry["weave_ref"].rpartition("/")[2]: entry["payload"]["value"]
        for entry in feedback
        if entry["feedback_type"] == "wb_run"
    }
    return Counter(root["wb_run_id"] or later.get(root["id"], "none") for root in roots)


def _root_of(roots: list[dict[str, Any]], sample: int) -> dict[str, Any]:
    return next(root for root in roots if root["attributes"]["sample_index"] == sample)


def _names_below(calls: list[dict[str, Any]], call: dict[str, Any]) -> dict[str, Any]:
    """Return the names of the calls below one, as a tree without repetitions."""
    children = [child for child in calls if child["parent_id"] == call["id"]]
    return {child["display_name"]: _names_below(calls, child) for child in children}


async def test_two_backends_get_equal_spans(
    rollout: Callable[..., Any], project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``trace.backend='mlflow,otlp'`` both have every span, in equal trees."""
    mlflow = MlflowAdapter(f"sqlite:///{tmp_path}/mlflow.db")
    with receiver() as adapters:
        (otlp,) = [adapter for adapter in adapters if adapter.exporter == "otlp"]
        for name, value in {**mlflow.variables, **otlp.variables}.items():
            monkeypatch.setenv(name, value)
        report = await rollout("mlflow,otlp")
    assert {name: count.delivered for name, count in report.exporters.items()} == {
        "mlflow": report.recorded,
        "otlp": report.recorded,
    }
    assert (report.lost, report.undelivered) == (0, 0)
    shown = trees(mlflow.read(project))
    assert len(shown) == len(QUESTIONS) * SIBLINGS + 1
    assert shown == trees(otlp.read(project))
