"""Traces are linked to the run that transformers' callbacks start, and the experiment has the run's name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from transformers import TrainerState, TrainingArguments
from transformers.integrations import integration_utils

import otel_rollout
from otel_rollout.integrations.trl import tracking
from otel_rollout.integrations.trl.patched_modules import seams
from otel_rollout.record.runs import membership
from otel_rollout.record.runs.founding import node_directory
from otel_rollout.record.runs.state import state
from otel_rollout.spool import layout
from tests.spool_reader import Recorded

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # MLflow's


@pytest.fixture
def linked(fresh_process: None) -> Iterator[Callable[[], dict[str, str]]]:
    """Return a function that reads the published runs; the callbacks are patched."""
    otel_rollout.configure({"mlflow": {"tracking_uri": "sqlite:///unused.db"}, "weave": {}})
    callbacks = (integration_utils.MLflowCallback, integration_utils.WandbCallback)
    originals = [callback.setup for callback in callbacks]
    seams.patch((".tracking",), integration_utils)
    yield lambda: layout.read_trackers(node_directory(membership.decide()))
    for callback, original in zip(callbacks, originals, strict=True):
        callback.setup = original


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Set MLflow's store and experiment for transformers' callback."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "grpo")
    mlflow.set_tracking_uri(uri)
    yield "grpo"
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(None)


def _arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), run_name="first", use_cpu=True, report_to=[])


def test_mlflow_run_of_the_callback_is_published(
    linked: Callable[[], dict[str, str]], experiment: str, tmp_path: Path
) -> None:
    """The run has the trainer's name, in the experiment of transformers' variable."""
    callback = integration_utils.MLflowCallback()
    callback.setup(_arguments(tmp_path), TrainerState(), None)
    run = mlflow.active_run()
    assert run is not None
    assert linked() == {"mlflow": run.info.run_id}
    assert run.info.run_name == "first"


def test_rank_that_starts_no_run_publishes_none(
    linked: Callable[[], dict[str, str]], experiment: str, tmp_path: Path
) -> None:
    """Only the first process of a training reports."""
    state = TrainerState(is_world_process_zero=False)
    integration_utils.MLflowCallback().setup(_arguments(tmp_path), state, None)
    assert mlflow.active_run() is None
    assert not node_directory(membership.decide()).exists()


@pytest.mark.parametrize(
    ("run", "published"),
    [
        (SimpleNamespace(entity="me", project="p", id="r1", disabled=False), {"weave": "me/p/r1"}),
        (SimpleNamespace(entity="", project="p", id="r1", disabled=False), None),
        (SimpleNamespace(entity="dummy", project="dummy", id="dummy", disabled=True), None),
        (None, None),
    ],
    ids=["online", "offline without an entity", "disabled", "no run"],
)
def test_wandb_run_is_published_if_it_has_an_address(
    linked: Callable[[], dict[str, str]], run: Any, published: dict[str, str] | None
) -> None:
    """W&B is not installed here: the callback is one whose run has begun."""
    tracking._publish_wandb(None, SimpleNamespace(_wandb=SimpleNamespace(run=run)), None, TrainerState())
    if published is None:
        assert not node_directory(membership.decide()).exists()
    else:
        assert linked() == published


def test_run_name_names_the_experiment(tracing_unnamed: Callable[[], list[Recorded]], tmp_path: Path) -> None:
    """Processes that are started later inherit the name."""
    tracking._name_experiment(None, args=_arguments(tmp_path))
    assert os.environ["OTEL_ROLLOUT_EXPERIMENT"] == "first"
    with otel_rollout.rollout_trace_attr(step=1):
        pass
    (root,) = tracing_unnamed()
    assert root.attributes["rollout.experiment_name"] == "first"


@pytest.fixture
def tracing_unnamed(
    recorded: Callable[[], list[Recorded]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[Recorded]]:
    """Switch tracing on without a name for the experiment."""
    monkeypatch.setenv("OTEL_ROLLOUT_EXPERIMENT", "")
    otel_rollout.configure(experiment_name="")
    return recorded


def test_name_that_is_set_stays(tracing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By code, or by the variable."""
    tracking._name_experiment(None, args=_arguments(tmp_path))
    assert membership.decide().experiment_name == "experiment"
    monkeypatch.setenv("OTEL_ROLLOUT_EXPERIMENT", "by-variable")
    tracking._name_experiment(None, args=_arguments(tmp_path))
    assert os.environ["OTEL_ROLLOUT_EXPERIMENT"] == "by-variable"


def test_name_of_a_run_that_records_does_not_change(tracing: None, tmp_path: Path) -> None:
    """A second trainer of the process records into the same run."""
    with otel_rollout.rollout_trace_attr(step=1):
        pass
    before = state.settings
    tracking._name_experiment(None, args=_arguments(tmp_path))
    assert state.settings is before
