"""Compare the data sent to MLflow and Weave with files that a person has read.

``python -m tests.exporting.test_mappings`` writes the files anew after a change that is meant.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.otlp.span import Span
from otel_rollout_mlflow.mapping import placeholder, to_mlflow, trace_name
from otel_rollout_mlflow.scores import MlflowFeedback, feedback_of, is_given_outside
from otel_rollout_weave.mapping import to_call, to_marker
from otel_rollout_weave.scores import feedback_of as weave_feedback_of
from tests.exporting.mapped_spans import operations, roots
from tests.sdk_spans import decoded

EXPECTED = Path(__file__).with_name("expected")


def mlflow_of(span: Span) -> dict[str, Any]:
    """Return the fields that the MLflow exporter sends for a span."""
    mapped = to_mlflow(span)
    made: dict[str, Any] = {
        "attributes": mapped.attributes,
        "resource": dict(mapped.resource.attributes),
        "feedback": [
            {"id": score.id, **score_fields(score), "metadata": score.metadata, "tag": score.tag_text}
            for score in feedback_of(span)
        ],
        "is_given_outside": is_given_outside(span),
    }
    if not span.parent_id:
        running = placeholder(span)
        made["running"] = {"tags": dict(running.resource.attributes), "name": trace_name(running)}
    return made


def score_fields(score: MlflowFeedback) -> dict[str, Any]:
    fields = {**vars(score), "rationale": score.comment or None}
    return {name: value for name, value in fields.items() if name not in ("comment", "origin")}


def weave_of(span: Span) -> dict[str, Any]:
    """Return the fields that the Weave exporter sends for a span."""
    call = to_call(span, "entity/project", "entity/project/run")
    made: dict[str, Any] = {
        "call": json.loads(call.encoded),
        "stand_in": json.loads(call.stand_in()),
        "marker_id": call.marker_id,
        "end_ns": call.end_ns,
    }
    made["feedback"] = [{**score.to_weave("e/p"), "rank": score.rank} for score in weave_feedback_of(span)]
    if not span.parent_id:
        made["running"] = json.loads(to_marker(span, "entity/project", None))
    return made


MAPPINGS = {"mlflow": mlflow_of, "weave": weave_of}


def mapped(name: str) -> dict[str, Any]:
    """Map all spans, and decode the result from JSON."""
    spans = {**roots(), **operations()}
    return json.loads(json.dumps({title: MAPPINGS[name](decoded(span)) for title, span in spans.items()}))


@pytest.mark.parametrize("name", MAPPINGS)
def test_mapped_spans_are_as_they_were(name: str) -> None:
    """Every field that a backend gets equals the field in the file."""
    expected = json.loads((EXPECTED / f"{name}.json").read_text())
    found = mapped(name)
    assert list(found) == list(expected)
    for title, fields in expected.items():
        assert json.dumps(found[title], sort_keys=True) == json.dumps(fields, sort_keys=True), title


def main() -> None:
    """Write the files."""
    for name in MAPPINGS:
        (EXPECTED / f"{name}.json").write_text(json.dumps(mapped(name), indent=1, sort_keys=False) + "\n")


if __name__ == "__main__":
    main()
