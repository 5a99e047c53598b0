"""What the integration of TRL does without TRL: patches, identity, and the block of a rollout_func."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.kit.seams import around
from otel_rollout.integrations.state import state
from otel_rollout.integrations.trl import generation, loss, progress, sample
from otel_rollout.integrations.trl.batch import GenerationBatch, Sample, being_current
from otel_rollout.integrations.trl.patched_modules import seams
from tests.spool_reader import tree


class Trainer:
    """The attributes of a trainer that identify its batches."""

    def __init__(self, step: int = 0, process_index: int = 0, training: bool = True) -> None:
        self.model = SimpleNamespace(training=training)
        self.state = SimpleNamespace(global_step=step)
        self.accelerator = SimpleNamespace(num_processes=2, process_index=process_index)
        self.num_generations, self.num_generations_eval = 4, 2
        self.args: Any = None


def of(trainer: Any, rows: int) -> list[tuple[int | str, int]]:
    """Return prompt and sibling of each row of the trainer's next batch."""
    found = progress.identify(trainer, rows)
    return [(found.sample_index(row), found.rollout_n(row)) for row in range(rows)]


@pytest.fixture
def first_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next trainer be the process's first."""
    monkeypatch.setattr(state, "trainer_count", 0)


@pytest.mark.usefixtures("first_trainer")
def test_rows_are_numbered_over_all_processes() -> None:
    """A group may lie in two processes: here the second one."""
    assert of(Trainer(process_index=0), 6) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    state.trainer_count = 0
    assert of(Trainer(process_index=1), 6) == [(1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]


@pytest.mark.usefixtures("first_trainer")
def test_prompts_count_on_within_a_step_and_anew_in_the_next() -> None:
    """An evaluation counts for itself."""
    trainer = Trainer()
    assert of(trainer, 2) == [(0, 0), (0, 1)]
    assert of(trainer, 2) == [(1, 0), (1, 1)]
    trainer.model.training = False
    assert of(trainer, 2) == [(0, 0), (0, 1)]
    trainer.model.training = True
    assert of(trainer, 2) == [(2, 0), (2, 1)]
    trainer.state.global_step = 1
    assert of(trainer, 2) == [(0, 0), (0, 1)]


@pytest.mark.usefixtures("first_trainer")
def test_steps_that_go_back_number_new_prompts() -> None:
    """A second training of the same trainer, and a step that is run again, share no prompt with the first."""
    trainer = Trainer()
    seen = []
    for step in (0, 1, 2, 0, 1, 2, 3, 1, 1):
        trainer.state.global_step = step
        found = progress.identify(trainer, 4)
        seen.append((found.step, found.sample_index(0), found.sample_index(3)))
    first = [(1, 0, 0), (2, 0, 0), (3, 0, 0)]
    second = [(1, 2, 2), (2, 2, 2), (3, 2, 2), (4, 2, 2)]
    assert seen == [*first, *second, (2, 4, 4), (2, 6, 6)]


@pytest.mark.usefixtures("first_trainer")
def test_prompts_of_a_second_trainer_have_its_number() -> None:
    """The steps of both start at 1."""
    assert of(Trainer(), 1) == [(0, 0)]
    assert of(Trainer(), 1) == [("2:0", 0)]


def test_training_counts_from_the_step_that_learns_and_evaluation_from_the_last() -> None:
    """The policy version is the number of updates."""
    training, evaluation = progress.identify(Trainer(7), 4), progress.identify(Trainer(7, training=False), 4)
    assert (training.step, training.validate, training.policy_version, training.group_size) == (
        8,
        False,
        7,
        4,
    )
    assert (evaluation.step, evaluation.validate, evaluation.group_size) == (7, True, 2)


def test_moved_seam_warns_once_and_the_rest_is_patched(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names what TRL lacks, and what is not traced."""
    module = ModuleType("trl.trainer.grpo_trainer")

    class GRPOTrainer:
        def _tool_call_loop(self) -> str:
            return "called"

    module.GRPOTrainer = GRPOTrainer  # type: ignore[attr-defined]
    given = GRPOTrainer._tool_call_loop
    with caplog.at_level(logging.WARNING, logger="otel_rollout"):
        seams.patch((".tool_loop",), module)
    assert [record.getMessage() for record in caplog.records] == [
        f"otel-rollout: trl {seams.version} has no "
        "trl.trainer.grpo_trainer.GRPOTrainer._get_tool_suffix_ids, so calls of unknown tools, and calls "
        "with arguments that are no object, are not traced; the rest is traced."
    ]
    assert GRPOTrainer._tool_call_loop is not given
    assert GRPOTrainer()._tool_call_loop() == "called"


def test_profiler_without_the_seam_warns(caplog: pytest.LogCaptureFixture) -> None:
    """A module without the class is no error."""
    with caplog.at_level(logging.WARNING, logger="otel_rollout"):
        seams.patch((".batch",), ModuleType("trl.extras.profiling"))
    (record,) = caplog.records
    assert "has no trl.extras.profiling.ProfilingContext.__exit__" in record.getMessage()


@pytest.mark.parametrize("variables", [{}, {"OTEL_TRACES_EXPORTER": "spool"}])
def test_importing_the_integration_imports_neither_trl_nor_torch(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without tracing, no import is watched either."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    program = (
        "import sys; from otel_rollout.integrations.trl import sample\n"
        "with sample(0): pass\n"
        "print(sorted({'trl', 'torch', 'transformers'} & set(sys.modules)))\n"
        "print(any(type(finder).__name__ == 'ReportingFinder' for finder in sys.meta_path))\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.split("\n")[:2] == ["[]", str(bool(variables))]


def test_sample_joins_the_trajectory_of_a_row(recorded: Any) -> None:
    """An index that is not in the batch, and a call outside of any batch, do nothing."""
    entries = [Sample(OpenTrajectory(rollout_trace_attr(sample_index=index))) for index in range(2)]
    running = GenerationBatch(Trainer(), progress.identify(Trainer(), 2), entries, "batch")
    play = rollout_trace_op(name="play")(len)
    with being_current(running):
        with sample(1):
            play("ab")
        with sample(2):
            pass
    with sample(0):
        pass
    for entry in entries:
        entry.trajectory.end()
    spans: list[list[Any]] = [[], []]
    for span in recorded():
        spans[span.attributes["rollout.sample_index"]].append(span)
    assert list(map(tree, spans)) == [{"rollout_trace": []}, {"rollout_trace": ["play"]}]


def test_rows_that_do_not_match_are_not_recorded(recorded: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A trainer of one's own generates for three prompts where there are two; a warning says so, once."""
    trainer = Trainer()
    entries = [Sample(OpenTrajectory(rollout_trace_attr(sample_index=index))) for index in range(2)]
    generate = around(generation.generate_turn)(lambda self, prompt_ids: ([[1], [2], [3]], None))
    with being_current(GenerationBatch(trainer, progress.identify(trainer, 2), entries, "batch")):
        for _ in range(2):
            assert generate(trainer, [[0], [0], [0]]) == ([[1], [2], [3]], None)
    for entry in entries:
        entry.trajectory.end()
    assert [span.name for span in recorded()] == ["rollout_trace"] * 2
    assert [record.getMessage() for record in caplog.records if record.name == "otel_rollout"] == [
        "otel-rollout: model calls of a TRL batch are not recorded: 3 prompts were generated, and 2 "
        "were expected."
    ]


@pytest.mark.parametrize(
    ("is_cut", "counts", "reason"),
    [
        (True, (5, 3, 3), None),
        (True, (0, 0, 0), "the completion was cut off, and mask_truncated_completions is set"),
        (False, (5, 0, 0), "no token of the completion is in the loss"),
        (False, (5, 3, 0), "the importance sampling ratio is out of bounds"),
    ],
)
def test_reason_says_why_a_completion_is_not_trained(
    is_cut: bool, counts: tuple[int, int, int], reason: str | None
) -> None:
    """The counts are those of the completion, of the model in it, and of the loss."""
    assert loss.reason(is_cut, *counts) == reason
