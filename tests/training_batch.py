"""A step's batch of scores, and the values that a target shall have."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from otel_rollout import rollout_trace_attr, score_batch

SIZE = 24
"""Trajectories of the step."""


def columns(seed: int = 0, size: int = SIZE) -> dict[str, Any]:
    """Return scores of each kind: floats of two widths, a bool, integers, and a list with gaps."""
    source = random.Random(seed)
    return {
        "advantage": np.array([source.gauss(0, 1) for _ in range(size)], np.float32),
        "return": np.array([source.gauss(0, 1) for _ in range(size)]),
        "trained": np.array([source.random() < 0.5 for _ in range(size)]),
        "trained_tokens": np.array([source.randrange(9000) for _ in range(size)]),
        "importance_ratio": [None if row % 5 == 0 else source.random() for row in range(size)],
    }


def identities(size: int = SIZE) -> dict[str, Any]:
    """Return the identities of the step's trajectories, in groups of four."""
    return {
        "step": 3,
        "sample_index": [f"uid-{row // 4}" for row in range(size)],
        "rollout_n": np.arange(size) % 4,
    }


def record_trajectories(size: int = SIZE) -> None:
    """Record the step's trajectories."""
    for row in range(size):
        with rollout_trace_attr(step=3, sample_index=f"uid-{row // 4}", rollout_n=row % 4):
            pass


def record_batch(scores: dict[str, Any], **more: Any) -> None:
    """Record the step's scores; those that are not trained have a reason."""
    reasons = [None if is_trained else "all rewards are equal" for is_trained in scores["trained"]]
    score_batch(scores, comments={"trained": reasons}, **identities(len(reasons)), **more)


def expected(scores: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return row and rollout → name → value."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for name, values in scores.items():
        for row, value in enumerate(values):
            if value is not None:
                plain = value.item() if hasattr(value, "item") else value
                given = plain if isinstance(plain, bool) else float(plain)
                found.setdefault((f"uid-{row // 4}", row % 4), {})[name] = given
    return found


def newest(early: dict[str, Any], late: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return what a target shall have after both batches: of each name the later value."""
    values = expected(early)
    for trajectory, newer in expected(late).items():
        values[trajectory] |= newer
    return values
