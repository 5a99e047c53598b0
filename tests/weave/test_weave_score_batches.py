"""The scores of a batch are feedback of their calls in Weave."""

from __future__ import annotations

import otel_rollout
from tests import training_batch
from tests.waiting import wait_for

SIZE = 16


def found_in(weave, project):
    """Return row and rollout of each root call → name → value of its feedback; each is stored once."""
    roots = {
        call["id"]: (call["attributes"]["sample_index"], call["attributes"]["rollout_n"])
        for call in weave.calls(project)
        if call["parent_id"] is None
    }
    found = {identity: {} for identity in roots.values()}
    for one in weave.feedback(project):
        values = found[roots[one["weave_ref"].rpartition("/")[2]]]
        assert one["feedback_type"] not in values
        values[one["feedback_type"]] = one["payload"]["value"]
    return found


def reasons_in(weave, project):
    """Return the explanation of each score ``trained`` that is false."""
    payloads = [one["payload"] for one in weave.feedback(project) if one["feedback_type"] == "trained"]
    return [one.get("explanation") for one in payloads if one["value"] is False]


def test_each_value_of_each_trajectory_is_feedback(fresh_process, tmp_path, weave, environment, project):
    """Given before, while and after the trajectories are delivered; the newest of a name stays."""
    otel_rollout.configure({"weave": {}}, project_name=project, experiment_name="e", training_tokens=True)
    early, late = training_batch.columns(1, SIZE), training_batch.columns(2, SIZE)
    training_batch.record_batch(early)
    training_batch.record_trajectories(SIZE)
    wait_for(lambda: otel_rollout.status().exporters["weave"].delivered > 2 * SIZE, 300, "delivery")
    training_batch.record_batch(late)
    report = otel_rollout.shutdown(300)
    values = training_batch.newest(early, late)
    found = found_in(weave, project)
    assert found == values
    assert all(isinstance(scores["trained"], bool) for scores in found.values())
    assert set(reasons_in(weave, project)) == {"all rewards are equal"}
    assert report.exporters["weave"].unresolved_scores == {}
    assert (report.exporters["weave"].pending, report.lost) == (0, 0)
