"""Make the rows of scores by which a trainer says what it made of trajectories."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from tests.table.tables import root, row, score

_ids = itertools.count(1)


def outcome(scores: dict[str, Any], reason: str | None = None, **columns: Any) -> Iterator[dict[str, Any]]:
    """Yield the evaluation spans of scores by identity, each in a trace of its own.

    Args:
        scores: score's name → value; NaN and texts are stored as the exporter stores them.
        reason: why the loss does not use the trajectory.
        columns: the identity.
    """
    for name, value in scores.items():
        number = next(_ids)
        is_finite = not isinstance(value, (float, str)) or (isinstance(value, float) and math.isfinite(value))
        label = str(value) if isinstance(value, bool) or not is_finite else None
        yield row(
            f"f{number:07x}", f"e{number:07x}", name=f"score {name}", kind="EVALUATOR", score_name=name,
            score_value=float(value) if is_finite else None, score_label=label, score_by="identity",
            score_origin="identity", score_comment=reason if name == "trained" and not value else None,
            **columns,
        )  # fmt: skip


def trained(
    number: int, step: int, scores: dict[str, Any] | None = None, **columns: Any
) -> Iterator[dict[str, Any]]:
    """Yield a trajectory of a group of four, with a reward, and what training made of it.

    Args:
        number: it makes the trace id, the dataset row and the index in the group.
        step: the step.
        scores: the trainer's scores; None for a trainer that says nothing.
        columns: ``reward``, ``reason``, and further columns of the root.
    """
    reward, reason = columns.pop("reward", number / 8), columns.pop("reason", None)
    identity = {"step": step, "sample_index": str(number // 4), "rollout_n": number % 4}
    short = f"{number + 1:x}"
    yield root(short, **identity, **columns)
    if reward is not None:
        yield score(short, f"d{short}", reward, kind="EVALUATOR", **identity)
    yield from outcome(scores or {}, reason, **identity)
