"""Exporters' mappings at their limits: ranks of scores, names and sizes that are cut."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags

from otel_rollout.base import errors
from otel_rollout.base.state import state
from otel_rollout.otlp.span import Span
from otel_rollout_mlflow import scores as mlflow_scores
from otel_rollout_mlflow import tags, trace_reader
from otel_rollout_weave import mapping, values
from otel_rollout_weave import scores as weave_scores
from tests.sdk_spans import decoded

ROOT = SpanContext(1, 2, False, TraceFlags(1))


def root(**attributes: Any) -> Span:
    """Return a root span with these attributes."""
    return decoded(ReadableSpan("root", ROOT, attributes=attributes, start_time=1_000_000_000))


def test_mlflow_score_without_its_own_time_is_older_than_any_with_one() -> None:
    """Of two equally old scores the one with a reason wins; stored scores have equal ranks."""
    dated = mlflow_scores.MlflowFeedback("reward", 1.0, 17, trace_id="tr-1", span_id="2")
    undated = replace(dated, is_dated=False)
    assert dated.rank == (True, 17, False)
    assert undated.rank == (False, 0, False)
    assert replace(dated, comment="why").rank > dated.rank > undated.rank
    for score in (dated, undated):
        assert mlflow_scores.rank_of({"metadata": score.metadata}) == score.rank
    assert mlflow_scores.rank_of({"rationale": "why"}) == (False, 0, True)


def test_mlflow_score_of_a_person_has_the_time_of_its_last_change() -> None:
    """One that was never changed has the time at which it was given; one of ours keeps its own."""
    given = {"assessment_name": "quality", "feedback": {"value": True}, "create_time": "2026-01-02T03:04:05Z"}
    changed = {**given, "last_update_time": "2026-01-02T03:04:06Z"}
    times = [trace_reader.score_in(each).time_ns for each in (given, changed)]
    assert times == [1767323045 * 10**9, 1767323046 * 10**9]
    ours = mlflow_scores.MlflowFeedback("quality", True, 17, trace_id="tr-1", span_id="2")
    assert trace_reader.score_in({**changed, "metadata": ours.metadata}).time_ns == 17


def test_mlflow_tag_that_is_refused_is_one_warning_with_a_short_name(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is shown whole up to its limit; the number of warnings is bounded."""
    monkeypatch.setattr(errors, "MAX_REPORTED", len(state.reported) + 3)
    shown, cut = "!" * 80, "?" * 81
    for name in (shown, cut, "a,", "b,"):
        tags.warn_of_refused([root(**{f"rollout.score.{name}": 1.0})] * 2)
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 3
    assert repr(shown) in messages[0]
    assert repr("?" * 80 + "…") in messages[1]


def test_weave_score_without_a_readable_time_is_older_than_any_with_one() -> None:
    """Weave stores the time as text; the rank is in microseconds."""
    score = weave_scores.WeaveFeedback("reward", 1.0, 1_700_000_000_123_456_000, call_id="call")
    payload = score.to_weave("e/p")["payload"]
    assert weave_scores.rank_of(payload) == (True, 1_700_000_000_123_456, False)
    for unreadable in ({}, {"given_at": "yesterday"}, {"given_at": None}, {"given_at": "2023-11-14"}):
        assert weave_scores.rank_of({**unreadable, "explanation": "why"}) == (False, 0, True)


@pytest.mark.parametrize("length", [127, 128, 129, 500])
def test_weave_feedback_type_is_cut_beyond_its_limit(length: int) -> None:
    """A digest keeps long names apart; names at the limit stay whole."""
    name = "s" * length
    type_ = weave_scores._feedback_type(name)
    assert (type_ == name) is (length <= 128)
    assert len(type_) <= 128
    assert length <= 128 or type_ != weave_scores._feedback_type(name + "t")


@pytest.mark.parametrize("large", ["input.value", "output.value"])
def test_weave_call_that_is_too_large_keeps_its_small_parts_whole(large: str) -> None:
    """A part below its share stays as it is, and the large part may use the rest."""
    small = "output.value" if large == "input.value" else "input.value"
    texts = {large: {"text": "x" * (5 << 20)}, small: {"text": "y" * 1000}}
    source = {name: orjson.dumps(value).decode() for name, value in texts.items()}
    source |= {"input.mime_type": "application/json", "output.mime_type": "application/json"}
    fitting = values.shortened_parts(source, {}, {"a": "z" * 1000})
    sizes = {name: values.stored_bytes_exact(value) for name, value in fitting.items()}
    whole, cut = ("output", "inputs") if large == "input.value" else ("inputs", "output")
    assert fitting[whole] == {"text": "y" * 1000}
    assert fitting["attributes"] == {"a": "z" * 1000}
    assert sizes[cut] > 0.4 * values.MAX_CALL_BYTES
    assert sum(sizes.values()) <= values.MAX_CALL_BYTES


def test_weave_call_of_three_large_parts_gives_each_a_third() -> None:
    """No part takes the room of another; an input that is no object is put into one."""
    source = {"input.value": "x" * (5 << 20), "output.value": "y" * (5 << 20)}
    fitting = values.shortened_parts(source, {}, {"a": "z" * (5 << 20)})
    sizes = [values.stored_bytes_exact(value) for value in fitting.values()]
    assert 0.1 * values.MAX_CALL_BYTES < min(sizes) <= max(sizes) < 0.34 * values.MAX_CALL_BYTES
    assert max(sizes) < 1.2 * min(sizes)
    assert set(fitting["inputs"]) == {"value"}


@pytest.mark.parametrize(
    ("step", "is_kept"),
    [(0, True), (2**63 - 1, True), (2**63, False), (-1, False), (True, False), ("1", False)],
)
def test_weave_step_is_an_integer_of_its_column(step: Any, is_kept: bool) -> None:
    """Weave's column holds signed 64-bit integers."""
    assert mapping._step(step) == (step if is_kept else None)
