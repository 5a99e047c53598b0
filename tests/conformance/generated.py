"""Generate plans of trajectories, and record them in a process of their own.

``python -m tests.conformance.generated`` reads plans in JSON, one per line, and answers each plan with a line
once all of its spans are on disk.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from typing import Any

from hypothesis import strategies as st

from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.record import runtime

SECRET = "hf_" + "a1B2c3D4e5" * 4
ODD_TEXTS = (
    "界 🎲",
    "\ud83d half",
    "null",
    "1e22",
    "[1, 2]",
    '{"a": 1}',
    '"quoted"',
    "\x00\x1f\t",
    f"key: {SECRET}",
)
SCORE_NAMES = ("reward", "solved", "step", "sample_index", "界", "a b/c-d.e")

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.sampled_from(ODD_TEXTS)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(
        [math.nan, math.inf, -math.inf, 1e22, 0.1 + 0.2, 5e-324, 2**53 + 1, 2**63, -(2**63) - 1]
    )
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc.$ -é", max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
"""Every kind of JSON value, and values that JSON cannot hold."""

operations = st.recursive(
    st.just([]),
    lambda below: st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(["search", "run", "界.call"]),
                "kind": st.sampled_from(["CHAIN", "LLM", "TOOL"]),
                "given": values,
                # Not {}: a root shows the output of its last operation.
                "result": values.filter(lambda value: value != {}),
                "error": st.none() | texts,
                "below": below,
            }
        ),
        max_size=2,
    ),
    max_leaves=4,
)
scores = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(SCORE_NAMES),
            "value": st.booleans()
            | st.floats()
            | st.integers(-(2**60), 2**60)
            | st.sampled_from(["good", "True", "nan", "界", "0.5"]),
            "comment": st.none() | st.sampled_from(["why", "界 🎲", "\ud83d half"]),
            "how": st.sampled_from(["inside", "by id", "by id, later"]),
        }
    ),
    max_size=5,
)
trajectories = st.fixed_dictionaries(
    {
        "identity": st.fixed_dictionaries(
            {
                "step": st.none() | st.integers(-5, 2**40),
                "sample_index": st.integers(-(2**63), 2**63 - 1) | st.sampled_from(["7", "row/界", ""]),
                "rollout_n": st.integers(0, 8),
                "validate": st.booleans(),
            }
        ),
        "operations": operations,
        "scores": scores,
        # Not {}: with scores in it, Weave's output is that of a trajectory without output.
        "output": st.none()
        | st.just({"turns": 1, "reward": ["the application's"]})
        | values.filter(lambda value: value != {}),
        "error": st.none() | texts,
    }
)
plans = st.lists(trajectories, min_size=1, max_size=8)


def record(plan: list[dict[str, Any]]) -> None:
    """Record a plan by the public API."""
    later = []
    for planned in plan:
        with (
            contextlib.suppress(LookupError),
            rollout_trace_attr(**planned["identity"]) as trajectory,
        ):
            for operation in planned["operations"]:
                _perform(operation)
            for given in planned["scores"]:
                by_id = {} if given["how"] == "inside" else {"trajectory": trajectory.id}
                if given["how"] == "by id, later":
                    later.append((given, by_id))
                else:
                    score(given["name"], given["value"], comment=given["comment"], **by_id)
            if planned["output"] is not None:
                trajectory.set_output(planned["output"])
            if planned["error"] is not None:
                raise LookupError(planned["error"])
    for given, by_id in later:
        score(given["name"], given["value"], comment=given["comment"], **by_id)


def _perform(planned: dict[str, Any]) -> None:
    @rollout_trace_op(name=planned["name"], kind=planned["kind"])
    def operation(given: Any) -> Any:
        for below in planned["below"]:
            _perform(below)
        if planned["error"] is not None:
            raise LookupError(planned["error"])
        return planned["result"]

    with contextlib.suppress(LookupError):
        operation(planned["given"])


def main() -> None:
    """Record the plans that standard input contains."""
    for line in sys.stdin:
        record(json.loads(line))
        active = runtime.current()
        assert active is not None
        assert active.writer.flush(30)
        print("recorded", flush=True)


if __name__ == "__main__":
    main()
