"""What both of verl's trainers make of trajectories that two workers on Ray have generated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.exporters import install
from tests.ray_start import ray_gave_up
from tests.verl.recorded_training import Recorded, Row, differing, expected_scores
from tests.verl.versions import needs_v1

SECONDS = 500
pytestmark = needs_v1


class Trained:
    """A job with both trainers: what they had before each update, and what was delivered."""

    def __init__(self, directory: Path) -> None:
        delivered = directory / "delivered.jsonl"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        environment = {
            **kept,
            "PYTHONPATH": install(directory / "site"),
            "OTEL_TRACES_EXPORTER": "test-file",
            "OTEL_TEST_FILE": str(delivered),
            "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
            "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "120",
        }
        command = [sys.executable, "-W", "ignore", "-m", "tests.verl.programs.training_steps"]
        for _ in range(2):
            ran = subprocess.run(
                [*command, str(directory), "legacy,v1", "trainer.logger=[]"],
                cwd=directory,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=SECONDS,
            )
            if ran.returncode == 0 or not ray_gave_up(ran.stdout):
                break
        assert ran.returncode == 0, ran.stdout[-5000:]
        self.log = ran.stdout
        self.batches = torch.load(directory / "batches.pt", weights_only=False)
        self.recorded = Recorded(delivered)

    def rows(self, trainer: str) -> list[tuple[dict[str, Any], int, Row]]:
        """Return a trainer's batches with the numbers and trajectories of their rows, without padding."""
        found = []
        for batch in (batch for batch in self.batches if batch["trainer"] == trainer):
            for number, response in enumerate(batch["responses"].tolist()):
                length, index = batch["lengths"][number], batch["indices"][number]
                if index is not None:
                    row = self.recorded.trajectory(batch["step"], index, response[:length])
                    found.append((batch, number, row))
        return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Run the job."""
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.mark.parametrize("trainer", ["legacy", "v1"])
def test_scores_equal_the_trainers_tensors(trained: Trained, trainer: str) -> None:
    """Every value of every row that was trained on, or rejected."""
    rows = trained.rows(trainer)
    assert len(rows) >= 16
    for batch, number, row in rows:
        expected = expected_scores(batch, number, batch["step"] - 1 - batch["oldest"][number])
        assert not differing(trained.recorded.scores[row], expected), row


def test_group_with_equal_rewards_is_filtered_with_its_reason(trained: Trained) -> None:
    """The v1 trainer's dynamic sampling removes it, and groups that are left over."""
    used = {row for _, _, row in trained.rows("v1")}
    steps = {row[0] for row in used}
    others = {row for row in trained.recorded.roots if row[0] in steps} - used
    assert others
    for row in others:
        scores, comments = trained.recorded.scores[row], trained.recorded.comments[row]
        assert scores["trained"] is False
        is_equal = row[1] % 4 == 2
        reason = "the rewards of its group are equal" if is_equal else "more groups than needed were left"
        assert comments["trained"] == f"dynamic sampling: {reason}"


def test_each_score_is_of_a_recorded_trajectory(trained: Trained) -> None:
    """Rows that pad the v1 trainer's batch are none."""
    assert set(trained.recorded.scores) <= set(trained.recorded.roots)
    assert any(None in batch["indices"] for batch in trained.batches if batch["trainer"] == "v1")
    assert "internal error" not in trained.log
