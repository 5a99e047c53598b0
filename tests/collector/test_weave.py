"""Trajectories pass agent and gateway into Weave, and its client reads them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import Any

from tests.collector.support import run_python
from tests.local_weave import API_KEY, ENTITY, where
from tests.spool_reader import read_directory
from tests.waiting import wait_for

TRAJECTORIES = "tests.collector.programs.nested_turns"
FILTERS = {
    "step": 1,
    "sample_index": 2,
    "rollout_n": 1,
    "validate": True,
    "experiment_name": "grpo",
    "policy_version": 12,
    "score.reward": 0.5,
}


def test_trajectories_arrive_in_weave_and_are_found_by_what_they_are(
    collector: Any, environment: dict[str, str], local_weave: Any, tmp_path: Any
) -> None:
    """Every trajectory is there as one tree.

    Each part of its identity, extras and scores filter.
    """
    project = f"project-{uuid.uuid4().hex[:12]}"
    assert local_weave.calls(project) == []
    gateway = collector(
        *("gateway.yaml", "to-weave.yaml"),
        WEAVE_OTLP_ENDPOINT=f"{local_weave.url}/otel/v1/traces",
        WANDB_ENTITY=ENTITY,
        WANDB_PROJECT=project,
        WANDB_API_KEY=API_KEY,
    )
    agent = collector("agent.yaml", GATEWAY_ENDPOINT=gateway.endpoint)
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = agent.endpoint
    run_python(TRAJECTORIES, environment)

    recorded = {span.span.span_id.hex(): span for span in read_directory(tmp_path / "spool")}
    assert len(recorded) == 24 * 6
    wait_for(lambda: len(local_weave.calls(project)) >= len(recorded), 60, "every span in Weave")
    calls = local_weave.calls(project)
    assert sorted(call["id"] for call in calls) == sorted(recorded)
    trees = defaultdict(list)
    for call in calls:
        trees[call["trace_id"]].append(call)
        span = recorded[call["id"]].span
        assert call["trace_id"] == span.trace_id.hex()
        assert (call["parent_id"] or "") == span.parent_span_id.hex()
    assert len(trees) == 24
    assert {sum(call["parent_id"] is None for call in tree) for tree in trees.values()} == {1}

    roots = [span for span in recorded.values() if not span.span.parent_span_id]
    for name, value in FILTERS.items():
        meant = {s.span.span_id.hex() for s in roots if s.attributes[f"rollout.{name}"] == value}
        assert meant, name
        query = where(**{f"attributes__{name.replace('.', '__')}": value})
        found = local_weave.calls(project, query=query, filter={"trace_roots_only": True})
        assert {call["id"] for call in found} == meant, name
    one = where(attributes__step=1, attributes__sample_index=2, attributes__rollout_n=0)
    (call,) = local_weave.calls(project, query=one, filter={"trace_roots_only": True})
    turns = [child for child in local_weave.children(project, call["id"]) if child["inputs"]]
    assert sorted(turn["inputs"]["input.value"]["text"] for turn in turns) == ["one", "two"]
