"""Tracing leaves training bit-identical: weights, losses, completions and random generators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars
import pytest

from otel_rollout.base.environment import PREFIXES
from otel_rollout.rollout_table import open_table
from tests.forwarders import end_forwarders
from tests.spool_reader import read_directory

ROOT: Final = Path(__file__).parents[2]
EXAMPLE: Final = ROOT / "examples" / "trl"
PROGRAM: Final = ROOT / "tests" / "trl" / "programs" / "with_autoload.py"
STEPS, TRAJECTORIES, SIBLINGS = 4, 8, 4
"""Steps of the example, its trajectories per step and per prompt."""
TIMES: Final = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second"}
"""Logged numbers that differ between any two runs."""
WAYS: Final = {
    "untraced": {},
    "traced": {"OTEL_TRACES_EXPORTER": "delta", "OTEL_ROLLOUT_DELTA_URI": "rollouts"},
    "to a server that is gone": {
        "OTEL_TRACES_EXPORTER": "mlflow",
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "1",
    },
    "with a spool that cannot be written": {
        "OTEL_TRACES_EXPORTER": "delta",
        "OTEL_ROLLOUT_DELTA_URI": "rollouts",
        "OTEL_ROLLOUT_SPOOL_DIR": "/dev/null/spool",
    },
}
"""Way → variables of the process that trains."""
PROCESS_SECONDS: Final = 500.0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Run the example in each way with one model; yield way → directory of the run."""
    place = tmp_path_factory.mktemp("trl")
    run([str(EXAMPLE / "tiny_model.py"), "model"], place, {})
    found = {}
    for way, variables in WAYS.items():
        found[way] = place / way
        found[way].mkdir()
        run([str(EXAMPLE / "grpo_calculator.py"), "--model", "../model"], found[way], variables)
    yield found
    for directory in found.values():  # one of them still waits for its server
        end_forwarders(directory / "spool")


def run(arguments: list[str], directory: Path, variables: dict[str, str]) -> None:
    """Run a script of the example as a program of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        cwd=directory,
        env={
            **kept,
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",  # sets in pickled files have one order
            "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


def checkpoint(directory: Path, name: str) -> bytes:
    """Return a file of the checkpoint that the trainer writes after the last step."""
    return (directory / "grpo-calculator" / f"checkpoint-{STEPS}" / name).read_bytes()


def logged(directory: Path) -> list[dict[str, Any]]:
    """Return what the trainer logged in each step: losses, rewards, norms of gradients, lengths."""
    history = json.loads(checkpoint(directory, "trainer_state.json"))["log_history"]
    return [{name: value for name, value in entry.items() if name not in TIMES} for entry in history]


def completions(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of TRL's tables of completions, in the order of the steps and of the batch."""
    files = sorted((directory / "grpo-calculator" / "completions").glob("*.parquet"))
    return [row for file in files for row in polars.read_parquet(file).to_dicts()]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "untraced"])
def test_traced_training_is_bit_identical(trained: dict[str, Path], way: str) -> None:
    """Weights, state of the optimizer, random generators, logged values and completions are equal."""
    untraced, traced = trained["untraced"], trained[way]
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        assert checkpoint(traced, name) == checkpoint(untraced, name), name
    assert logged(traced) == logged(untraced)
    assert completions(traced) == completions(untraced)
    assert len(completions(traced)) == STEPS * TRAJECTORIES


def expected(place: int, row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a completion's trajectory; the completion is at this place in its step."""
    roles = [message["role"] for message in row["completion"]]
    return {
        "path": f"{row['step']}/{place // SIBLINGS}/{place % SIBLINGS}",
        "turns": roles.count("assistant"),
        "tool_calls": roles.count("tool"),
        "correct": row["correct"],
        "calculated": row["calculated"],
        "reward": row["correct"] + 0.5 * row["calculated"],
        "advantage": row["advantage"],
    }


def test_trajectories_are_those_of_the_completions_table(trained: dict[str, Path]) -> None:
    """Each completion is one trajectory with its turns, tool calls, rewards and advantage."""
    table = open_table(trained["traced"] / "rollouts")
    scores = ", ".join(
        f"max(CASE WHEN scores.name = '{name}' THEN scores.value END) AS {name}"
        for name in ("correct", "calculated", "reward", "advantage")
    )
    found = table.sql(
        f"SELECT path, turns, tool_calls, {scores} FROM trajectories JOIN scores USING (trace_id) "
        "GROUP BY trace_id, path, turns, tool_calls ORDER BY path"
    )
    rows = [expected(place % TRAJECTORIES, row) for place, row in enumerate(completions(trained["traced"]))]
    assert [dict(row) for row in found] == rows
    assert sum(row["tool_calls"] for row in rows) > STEPS  # the run has called the tool


def test_untraced_training_leaves_no_trace(trained: dict[str, Path]) -> None:
    """Without a variable, the process writes neither a spool nor a table."""
    assert sorted(path.name for path in trained["untraced"].iterdir()) == ["grpo-calculator"]


NOTEBOOK: Final = """
import os, runpy, sys
import trl
trl.GRPOTrainer
os.environ["OTEL_TRACES_EXPORTER"] = "spool"
import otel_rollout
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_program_that_sets_the_variable_itself_is_traced(trained: dict[str, Path], tmp_path: Path) -> None:
    """As in a notebook, it sets the variable after the import of TRL, and then imports this package."""
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    model = trained["untraced"].parent / "model"
    run(["notebook.py", str(EXAMPLE / "grpo_calculator.py"), "--model", str(model)], tmp_path, {})
    roots = [span for span in read_directory(tmp_path / "spool") if span.name == "rollout_trace"]
    assert len(roots) == STEPS * TRAJECTORIES
