"""A reward function, in a module of its own: verl loads it from a file."""

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **kwargs: Any
) -> dict[str, Any]:
    correct = f"#### {ground_truth}" in solution_str
    return {"score": 1.0 if correct else 0.0, "acc": correct, "answer": solution_str[-8:].strip()}
