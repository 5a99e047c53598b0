"""Compute the rule reward of an answer.

The right number after ``####`` is worth 1, a wrong number 0.1, an answer without such a line 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from otel_rollout import rollout_trace_op
from otel_rollout.base import semconv

CORRECT: Final = 1.0
FORMAT_ONLY: Final = 0.1


@dataclass(frozen=True)
class Score:
    """A reward and its parts."""

    score: float
    answer: str | None
    correct: bool

    @property
    def answer_format(self) -> bool:
        """Whether the solution has an answer line."""
        return self.answer is not None


def extract_answer(solution: str) -> str | None:
    """Return the number of the last ``#### <number>`` line; None without one.

    Thousands separators are removed.
    """
    found = re.findall(r"^#### *\$?(-?[\d,.]*\d)\s*$", solution, re.MULTILINE)
    return found[-1].replace(",", "") if found else None


@rollout_trace_op(kind=semconv.KIND_EVALUATOR)
def compute_score(data_source: str, solution: str, ground_truth: str) -> Score:
    """Judge the last assistant turn. Numbers are compared as numbers: 6.50 is 6.5."""
    answer = extract_answer(solution)
    if answer is None:
        return Score(0.0, answer=None, correct=False)
    correct = Decimal(answer) == Decimal(ground_truth)
    return Score(CORRECT if correct else FORMAT_ONLY, answer=answer, correct=correct)
