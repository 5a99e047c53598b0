"""Dumps that verl's own code wrote, read by the commands' way and counted without it."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest

from tests.dumps.reading import OpenedDump

pytestmark = pytest.mark.filterwarnings("ignore")  # verl warns of engines that are missing
CALL = '<tool_call>\n{"name": "calc", "arguments": {"e": "6*7"}}\n</tool_call>'
LOOP = f"So:\n{CALL}\nuser\n<tool_response>\n42\n</tool_response>\nassistant\nIt is 42."


def _rows(step, generator):
    """Return inputs, outputs, truths, scores and uids of a step, of which some sessions have pieces."""
    rows = []
    for group in range(6):
        for session in range(4):
            score = round(float(generator.random()), 3)
            for piece in range(int(generator.integers(1, 4))):
                output = LOOP if generator.random() < 0.5 else "plain"
                rows.append(
                    (
                        f"user\n{group}?\nassistant\n",
                        output,
                        "42",
                        score,
                        f"p{step}-{group}_{session}_{piece}",
                    )
                )
    return rows


def _account(folder):
    """Count the lines of a folder by themselves: session → score, turns and tool calls."""
    sessions = defaultdict(lambda: [0.0, 0, 0])
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            found = json.loads(line)
            key = found["step"], found["uid"].rpartition("_")[0] if "uid" in found else (path, line)
            calls = found["output"].count("<tool_call>")
            sessions[key][0] = found["score"]
            sessions[key][1] += 1 + calls
            sessions[key][2] += calls
    return sorted((key[0], *values) for key, values in sessions.items())


def _as_read(found):
    columns = ("step", "reward", "turns", "tool_calls")
    return sorted(tuple(row[name] for name in columns) for row in found.trajectories())


def test_rollouts_of_the_default_trainer(tmp_path):
    """Trajectories, rewards, turns, tool calls and means of steps are those that the lines have."""
    trainer = pytest.importorskip("verl.trainer.ppo.v1.trainer_base").PPOTrainer
    generator = np.random.default_rng(3)
    for step in (1, 2, 10):
        inputs, outputs, truths, scores, uids = zip(
            *sorted(_rows(step, generator), key=lambda row: row[4]), strict=True
        )
        trainer._write_generations(
            inputs, outputs, truths, scores, {"uid": uids}, str(tmp_path / "run/rollouts"), step
        )
    found = OpenedDump(tmp_path / "run", kept=tmp_path / "kept")
    account = _account(tmp_path / "run/rollouts")
    assert _as_read(found) == account
    assert found.remarks == [f"verl rollout dump: 3 files, steps 1–10, {len(account)} trajectories"]
    for row in found.rows("SELECT step, trajectories, reward_mean FROM steps"):
        rewards = [reward for step, reward, *_ in account if step == row["step"]]
        assert (row["trajectories"], row["reward_mean"]) == (
            len(rewards),
            pytest.approx(sum(rewards) / len(rewards)),
        )


def test_validation_of_the_older_trainer_with_columns_of_numpy(tmp_path):
    """Columns of the reward function are scores, also where the writer made text of a number."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    written = RayPPOTrainer._write_generations
    columns = {"acc": [np.float32(0.5), np.float32(1.0)], "right": [np.bool_(True), np.bool_(False)]}
    given = (["a", "a"], ["x", "y"], ["1", None], [0.25, float("nan")], columns)
    written(*given, str(tmp_path / "run/validation_data"), 20)
    found = OpenedDump(tmp_path / "run", kept=tmp_path / "kept")
    assert [row["path"] for row in found.trajectories()] == ["validation/20/0/0", "validation/20/0/1"]
    scores = found.scores()
    assert scores["validation/20/0/0"] == {"reward": 0.25, "acc": 0.5, "right": 1.0}
    assert scores["validation/20/0/1"] == {"reward": None, "acc": 1.0, "right": 0.0}
