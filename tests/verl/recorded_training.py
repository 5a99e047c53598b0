"""Read what was delivered of training, and compute it again from the trainer's tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

IDENTITY = ("step", "sample_index", "rollout_n")
Row = tuple[Any, ...]
"""The identity of a trajectory."""


class Recorded:
    """What was delivered of trajectories: tokens, attributes of the root, scores by identity."""

    def __init__(self, path: Path) -> None:
        self.roots: dict[Row, dict[str, Any]] = {}
        self.tokens: dict[Row, Row] = {}
        self.scores: dict[Row, dict[str, Any]] = {}
        self.comments: dict[Row, dict[str, str]] = {}
        for line in path.read_text().splitlines():
            _, name, attributes = json.loads(line)
            row = tuple(attributes.get(f"rollout.{part}") for part in IDENTITY)
            if name == "agent_loop":
                assert row not in self.roots
                self.roots[row] = attributes
            elif name.endswith("AgentLoop.run"):
                output = json.loads(attributes["output.value"])
                self.tokens[row[0], row[1], tuple(output["response_ids"])] = row
            elif attributes.get("rollout.score_origin") == "identity":
                self._add_score(row, name.removeprefix("score "), attributes)

    def _add_score(self, row: Row, name: str, attributes: dict[str, Any]) -> None:
        scores = self.scores.setdefault(row, {})
        assert name not in scores, "two scores of one trajectory"
        scores[name] = json.loads(attributes["output.value"])
        comment = attributes.get("gen_ai.evaluation.explanation")
        if comment is not None:
            self.comments.setdefault(row, {})[name] = comment

    def trajectory(self, step: int, index: int, response: list[int]) -> Row:
        """Return the trajectory of a step and a dataset row that has these tokens."""
        return self.tokens[step, index, tuple(response)]


def expected_scores(batch: dict[str, Any], row: int, lag: int) -> dict[str, Any]:
    """Compute the scores of one row from the trainer's tensors, token by token."""
    values = {name: tensor[row].double().numpy() for name, tensor in batch.items() if torch.is_tensor(tensor)}
    trained = values["response_mask"] > 0
    rewards = values["token_level_rewards"]
    expected: dict[str, Any] = {
        "trained": bool(trained.any()),
        "trained_tokens": int(trained.sum()),
        "policy_lag": lag,
        "trained_reward": rewards.sum(),
        "kl_penalty": (values.get("token_level_scores", values["rm_scores"]) - rewards).sum(),
    }
    if trained.any():
        expected["advantage"] = values["advantages"][trained].mean()
        expected["importance_ratio"] = values["rollout_is_weights"][trained].mean()
        # of a trained row: no token of it was rejected
        difference = abs(values["rollout_log_probs"] - values["old_log_probs"])
        expected["logprob_diff_mean"] = difference[trained].mean()
        expected["logprob_diff_max"] = difference[trained].max()
    return expected


def differing(scores: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Return the names whose scores differ from the expected ones, with both."""
    return {
        name: (scores.get(name), value)
        for name, value in expected.items()
        if name not in scores or not math.isclose(scores[name], value, rel_tol=1e-5, abs_tol=1e-6)
    }
