"""What lists of traces call a trajectory: by default by which it is."""

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
def test_a_trace_is_called_by_which_it_is_unless_somebody_has_named_it(recorded, given, shown):
    """Step, sample and rollout, as far as they are given; the root span keeps its own name."""
    with rollout_trace_attr(**given):
        pass
    (root,) = recorded()
    assert semconv.name_of_trace(root.name, root.attributes) == shown
    assert root.name == given.get("name", "rollout_trace")


def test_an_operation_that_happens_to_be_called_so_keeps_its_name():
    """Only trajectories are called by which they are."""
    attributes = {semconv.SPAN_KIND: "CHAIN", semconv.STEP: 1}
    assert semconv.name_of_trace("agent_loop", attributes) == "agent_loop"
