"""Values that MLflow could not store or show: NUL characters, deep nesting, text in quotation marks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow_support import stored

from otel_rollout_mlflow.storable import MAX_LEVELS, storable_json
from tests.sdk_spans import JSON, deliver

NUL, SYMBOL = "a\0b", "a\u2400b"


def nested(levels: int, value: Any = "x") -> Any:
    for _ in range(levels):
        value = {"k": value}
    return value


def test_nul_costs_no_trajectory(uri, project, rollouts, exporter_for):
    """A NUL in any text arrives as its symbol, with step, tags and feedback (PostgreSQL holds no NUL)."""
    messages = json.dumps({"messages": [{"role": "user", "content": NUL}]})
    with rollouts.span(
        NUL,
        "AGENT",
        input__value=messages,
        output__value=NUL,
        output__mime_type="text/plain",
        input__mime_type="application/json",
        rollout__file=NUL,
        rollout__score__verdict=NUL,
        gen_ai__request__model=NUL,
        user__id=NUL,
    ) as root:
        root.record_exception(ValueError(NUL))
        with rollouts.span(
            "score verdict",
            gen_ai__evaluation__name="comment",
            gen_ai__evaluation__score__value=1.0,
            gen_ai__evaluation__explanation=NUL,
            rollout__sample_index=NUL,
        ):
            pass

    deliver(exporter_for(uri), rollouts.ended())

    [trace] = stored(uri, project, "tags.step = '1'")
    tags, root_span = trace.info.tags, trace.data.spans[0]
    assert (tags["mlflow.traceName"], tags["file"], tags["verdict"]) == (SYMBOL, SYMBOL, SYMBOL)
    assert root_span.name == root_span.outputs == root_span.inputs["messages"][0]["content"] == SYMBOL
    scores = {one.name: (one.feedback.value, one.rationale) for one in trace.info.assessments}
    assert scores["verdict"][0] == SYMBOL
    assert scores["comment"] == (1.0, SYMBOL)
    assert trace.info.state.value == "OK"


def test_deeply_nested_value_leaves_traces_readable(uri, project, rollouts, exporter_for):
    """Values below the limit are JSON text; the neighbours are found with their spans."""
    for levels in (MAX_LEVELS, 40, 200, 3000):
        deep = "[" * levels + "1" + "]" * levels if levels > 900 else json.dumps(nested(levels))
        with rollouts.span(f"depth {levels}", "AGENT", input__value=deep, rollout__note=deep, **JSON):
            pass

    deliver(exporter_for(uri), rollouts.ended())

    found = {
        trace.info.tags["mlflow.traceName"]: trace.data.spans[0].inputs for trace in stored(uri, project)
    }
    assert len(found) == 4
    assert found[f"depth {MAX_LEVELS}"] == nested(MAX_LEVELS)
    assert found["depth 40"] == nested(MAX_LEVELS, json.dumps(nested(40 - MAX_LEVELS)))
    assert isinstance(found["depth 3000"], str)


@pytest.mark.parametrize(
    "sample", ["q", '"q"', ' "q"', '"\\"q\\""', "[1]", '{"a":1}', "1.0", "true", "null", '"']
)
def test_tag_keeps_its_quotation_marks(database_uri, project, rollouts, exporter_for, sample):
    """A sample in quotation marks has another tag than the sample without."""
    with rollouts.span("agent", "AGENT", rollout__sample_index=sample):
        pass

    deliver(exporter_for(database_uri), rollouts.ended())

    [trace] = stored(database_uri, project)
    assert trace.info.tags["sample_index"] == sample


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(alphabet='[]{}"\\a', max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[]"', max_size=2), inner, max_size=2)
    ),
    max_leaves=20,
)


@given(value=JSON_VALUES, levels=st.integers(0, 60))
def test_value_below_the_limit_is_kept_as_json_text(value, levels):
    """Whatever the value holds, no level is below the limit, and its JSON text restores it."""
    whole = nested(levels, value)

    found = json.loads(storable_json(json.dumps(whole)))

    def restored(one: Any, left: int, original: Any) -> None:
        if isinstance(one, str) and not isinstance(original, str):
            assert left == 0
            assert json.loads(one) == original
        elif isinstance(one, dict):
            assert left > 0
            assert one.keys() == original.keys()
            for key, entry in one.items():
                restored(entry, left - 1, original[key])
        elif isinstance(one, list):
            assert left > 0
            assert len(one) == len(original)
            for entry, was in zip(one, original, strict=True):
                restored(entry, left - 1, was)
        else:
            assert one == original

    restored(found, MAX_LEVELS, whole)
