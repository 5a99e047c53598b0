"""The scores of a batch go over OTLP as evaluation spans."""

from __future__ import annotations

import json

import numpy as np

import otel_rollout
from otel_rollout.base import semconv
from tests import training_batch
from tests.conformance.otlp_adapter import receiver
from tests.spool_reader import plain_attributes


def test_each_value_of_each_trajectory_is_a_span(fresh_process):
    """With its identity; the values per token are an attribute of one of them."""
    arrays = [np.array([0.25 * row, np.nan][: row % 3], np.float32) for row in range(training_batch.SIZE)]
    scores = training_batch.columns()
    with receiver() as adapters:
        (ours,) = (adapter for adapter in adapters if adapter.exporter == "otlp")
        endpoint = ours.variables["OTEL_EXPORTER_OTLP_ENDPOINT"]
        otel_rollout.configure(
            {"otlp": {"endpoint": endpoint, "protocol": "http/protobuf"}},
            project_name="p",
            experiment_name="e",
            training_tokens=True,
        )
        training_batch.record_batch(scores, token_values={"logprob": arrays})
        report = otel_rollout.shutdown(60)
        received = [plain_attributes(span.attributes) for span, _ in ours._received]
    found: dict[tuple[str, int], dict[str, object]] = {}
    for known in received:
        assert known[semconv.SCORE_ORIGIN] == semconv.ORIGIN_IDENTITY
        assert known[semconv.STEP] == 3
        key = known[semconv.SAMPLE_INDEX], known[semconv.ROLLOUT_N]
        value = known[semconv.GEN_AI_EVALUATION_SCORE_VALUE]
        is_bool = semconv.GEN_AI_EVALUATION_SCORE_LABEL in known
        found.setdefault(key, {})[known[semconv.GEN_AI_EVALUATION_NAME]] = bool(value) if is_bool else value
        if known[semconv.GEN_AI_EVALUATION_NAME] == "training_tokens":
            stored = json.loads(known["rollout.tokens.logprob"])
            array = arrays[int(key[0].removeprefix("uid-")) * 4 + key[1]]
            assert stored == [None if np.isnan(value) else float(value) for value in array]
    values = training_batch.expected(scores)
    for row, array in enumerate(arrays):
        values[f"uid-{row // 4}", row % 4]["training_tokens"] = float(len(array))
    assert found == values
    assert len(received) == report.exporters["otlp"].delivered == report.recorded
