"""The scores of a batch are feedback of their MLflow traces."""

from __future__ import annotations

import numpy as np
from mlflow_support import stored

import otel_rollout
from tests import training_batch
from tests.waiting import wait_for

SIZE = 16


def found_in(uri, project):
    """Return row and rollout of each trace → name → value of its feedback."""
    return {
        (trace.info.tags["sample_index"], int(trace.info.tags["rollout_n"])): {
            one.name: one.value for one in trace.info.assessments
        }
        for trace in stored(uri, project)
    }


def test_each_value_of_each_trajectory_is_feedback(fresh_process, tmp_path, uri, project):
    """Given before, while and after the trajectories are delivered; values per token stay out of MLflow."""
    otel_rollout.configure(
        {"mlflow": {"tracking_uri": uri}}, project_name=project, experiment_name="e", training_tokens=True
    )
    early, late = training_batch.columns(1, SIZE), training_batch.columns(2, SIZE)
    tokens = {"logprob": [np.zeros(row, np.float32) for row in range(SIZE)]}
    training_batch.record_batch(early, token_values=tokens)
    training_batch.record_trajectories(SIZE)
    wait_for(lambda: otel_rollout.status().exporters["mlflow"].delivered > 2 * SIZE, 300, "delivery")
    training_batch.record_batch(late)
    report = otel_rollout.shutdown(300)
    values = training_batch.newest(early, late)
    for row in range(SIZE):
        values[f"uid-{row // 4}", row % 4]["training_tokens"] = float(row)
    found = found_in(uri, project)
    assert found == values
    assert all(isinstance(scores["trained"], bool) for scores in found.values())
    assert report.exporters["mlflow"].unresolved_scores == {}
    assert (report.exporters["mlflow"].pending, report.lost) == (0, 0)
    trace = stored(uri, project)[0]
    assert "rollout.tokens" not in str(trace.to_dict())
    reasons = {
        one.rationale for one in trace.info.assessments if one.name == "trained" and one.value is False
    }
    assert reasons <= {"all rewards are equal"}
