"""docs/tutorial.md, `weave.op`: the same filters find the calls of both programs."""

from __future__ import annotations

import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

from tests.coming_from import ROOT, programs, run, variables
from tests.local_weave import PYTHON, LocalWeave

TITLE = "weave.op"
NAMED = "math-agents"
IN_BOTH = {"inputs": {"question": "What is 6 * 7?"}, "output": "It is 42."}


def renamed(program: str, project: str) -> str:
    """Return the page's program for a project of the test's own."""
    return program.replace(NAMED, project)


def named(calls: list[dict[str, Any]]) -> Counter[str]:
    """Count calls by what their operations are called."""
    return Counter(call["op_name"].rpartition("/op/")[2].partition(":")[0] for call in calls)


def ours_at(project: str) -> dict[str, str]:
    return {**variables(TITLE), "OTEL_ROLLOUT_PROJECT": project}


def test_the_same_filters_find_calls_of_both_programs(
    tmp_path: Path, weave: LocalWeave, environment: dict[str, str], project: str
) -> None:
    """By step and by feedback; inputs and outputs of an operation are equal."""
    theirs, ours = programs(TITLE)
    run(renamed(theirs, project), tmp_path, PYTHON, **environment)
    run(renamed(ours, project), tmp_path, **environment, **ours_at(project))
    of_step = {"$expr": {"$eq": [{"$getField": "attributes.step"}, {"$literal": 1}]}}
    calls = weave.wait_for(project, 6, query=of_step)
    assert named(calls) == {"agent": 2, "calculate": 2, "rollout_trace": 1, "score reward": 1}
    for call in calls:
        if call["op_name"].rpartition("/op/")[2].startswith("agent"):
            assert {name: call[name] for name in IN_BOTH} == IN_BOTH
    assert Counter(each["feedback_type"] for each in weave.feedback(project)) == {"reward": 2}


def test_both_decorators_make_two_whole_traces(
    tmp_path: Path, weave: LocalWeave, environment: dict[str, str], project: str
) -> None:
    """One trace from each side; neither has calls of the other."""
    both = f"""
import sys

sys.path.append({sysconfig.get_path("purelib")!r})  # what we require, and Weave's environment lacks
import weave
from otel_rollout import rollout_trace_attr, rollout_trace_op

weave.init("math-agents")


@weave.op
@rollout_trace_op(kind="TOOL")
def calculate(expression: str) -> int:
    return 6 * 7


@rollout_trace_op(kind="AGENT")
@weave.op
def agent(question: str) -> str:
    return f"It is {{calculate('6 * 7')}}."


with rollout_trace_attr(step=2, sample_index=0, rollout_n=0):
    agent("What is 6 * 7?")
weave.finish()
"""
    given = {**environment, **ours_at(project), "PYTHONPATH": f"{ROOT}:{ROOT / 'exporters'}"}
    run(renamed(both, project), tmp_path, PYTHON, **given, OTEL_ROLLOUT_SHUTDOWN_TIMEOUT="0.1")
    forwarding = "from otel_rollout.cli import app; app(['forward'])"  # Weave's environment cannot deliver
    run(forwarding, tmp_path, **environment, **ours_at(project))
    calls = weave.wait_for(project, 5)
    by_trace: dict[str, list[dict[str, Any]]] = {}
    for call in calls:
        by_trace.setdefault(call["trace_id"], []).append(call)
    names = sorted(sorted(named(of_one).elements()) for of_one in by_trace.values())
    assert names == [["agent", "calculate"], ["agent", "calculate", "rollout_trace"]]
