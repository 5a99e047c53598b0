"""A trajectory is listed by step, sample and rollout by default."""

import pytest

from otel_rollout import rollout_trace_attr
from otel_rollout.base import semconv

VALIDATION = {"validate": True}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"step": 1, "sample_index": 29, "rollout_n": 1}, "1/29/1"),
        ({"step": 0, "sample_index": "row-7", "rollout_n": 0}, "0/row-7/0"),
        ({"step": 1, "sample_index": 29, "rollout_n": 1, **VALIDATION}, "validation/1/29/1"),
        ({"step": 1}, "1"),
        ({"step": 1, "sample_index": 29}, "1/29"),
        ({"sample_index": 29}, "-/29"),
        ({"rollout_n": 3}, "-/-/3"),
        ({}, "rollout_trace"),
        (VALIDATION, "rollout_trace"),
        ({"step": 1, "name": "debate"}, "debate"),
        ({"step": 1, "name": "agent_loop"}, "1"),
    ],
)
def test_unnamed_trajectory_is_listed_by_its_identity(recorded, given, shown):
    """Step, sample and rollout are used if they are given.

    The root span keeps its name.
    """
    with rollout_trace_attr(**given):
        pass
    (root,) = recorded()
    assert semconv.name_of_trace(root.name, root.attributes) == shown
    assert root.name == given.get("name", "rollout_trace")


def test_operation_with_the_default_name_keeps_it():
    """Only a trajectory is listed by its identity."""
    attributes = {semconv.SPAN_KIND: "CHAIN", semconv.STEP: 1}
    assert semconv.name_of_trace("agent_loop", attributes) == "agent_loop"
