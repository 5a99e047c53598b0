"""A reward function that reads the number which the scripted engine adds to each answer."""

import re
from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **kwargs: Any
) -> dict[str, Any]:
    found = re.search(r"number (\d+)", solution_str)
    assert found is not None
    number = int(found[1])
    return {"score": 0.5 if ground_truth == "nothing to learn" else number / 4, "number": number}
