"""A batch of scores reads back as the scores that were packed."""

from __future__ import annotations

import math
import struct

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations, score_batch, score_columns, writer
from otel_rollout.otlp.scan import StepKey
from otel_rollout.otlp.score_columns import PackedColumn
from otel_rollout.record.capture import score_columns as captured
from tests.sdk_spans import spans_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), TEXTS)
ROW = st.tuples(
    VALUES, VALUES, st.integers(0, 9), st.one_of(st.integers(0, 5), TEXTS), st.one_of(st.none(), TEXTS)
)
NAMES = "reward", "a name"


def line_of(columns: list[PackedColumn], rows: int, **shared: object) -> bytes:
    """Return the line of a batch, as a recorder writes it."""
    known = {semconv.PROJECT_NAME: "p", semconv.EXPERIMENT_NAME: "e", **shared}
    attributes, data = score_batch.attributes_of(columns, rows)
    body = b"".join(
        writer.line(
            writer.scope_head(semconv.SCOPE, "1", None, None),
            writer.head_below(b"1" * 32, b"", 0x103),
            b"2" * 16,
            b'"score batch"',
            1,
            1000,
            1000,
            (b"[", writer.attribute_list(known)[1:-1], b",", attributes, b"]"),
        )
    )
    before, after = score_batch.around_data(body)
    return writer.resource_head({semconv.RUN_ID: "r"}) + before + data + after


def batch_of(rows: list[tuple]) -> bytes:
    """Return the line of a batch with two scores, a step, a row and a comment for each trajectory."""
    columns: list[PackedColumn] = []
    fields = [
        ("score", NAMES[0]),
        ("score", NAMES[1]),
        ("step", ""),
        ("sample_index", ""),
        ("comment", NAMES[0]),
    ]
    for (field, name), values in zip(fields, zip(*rows, strict=True), strict=True):
        columns += captured.by_type(field, name, list(values))
    return line_of(columns, len(rows))


def as_recorded(value: object) -> object:
    """Return a value as a plain score has it."""
    if isinstance(value, (bool, str)):
        return value
    number = float(value)  # type: ignore[arg-type]
    return number if math.isfinite(number) else str(number)


@given(st.lists(ROW, min_size=1, max_size=20))
def test_each_value_reads_back_exactly(rows):
    """Numbers, bools, texts, NaN and infinities, of each trajectory, with identity and comment."""
    line = batch_of(rows)
    expected = [
        (name, as_recorded(row[number]), row[2], row[3], (row[4] or "") if number == 0 else "")
        for row in rows
        for number, name in enumerate(NAMES)
        if row[number] is not None
    ]
    spans = [span for each in score_batch.expanded(line) for span in spans_of(each)] if expected else []
    found = []
    for span in spans:
        attributes = span.attributes or {}
        score = evaluations.recorded_in(attributes, span.start_time or 0)
        assert score is not None
        assert score.origin == semconv.ORIGIN_IDENTITY
        assert span.parent is None
        assert attributes[semconv.PROJECT_NAME] == "p"
        step, index = attributes[semconv.STEP], attributes[semconv.SAMPLE_INDEX]
        found.append((score.name, score.value, step, index, score.comment))
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert score_batch.spans_in(line) == max(1, len(expected))


@given(st.lists(ROW, min_size=1, max_size=10), st.integers(0, 30))
def test_lines_are_equal_at_each_reading_and_from_any_of_them_on(rows, start):
    """The ids are made from the batch, and differ between scores."""
    batch = score_batch.batch_in(batch_of(rows))
    if batch is None:
        return
    lines = list(batch.lines())
    assert list(batch.lines(start)) == lines[start:]
    ids = [score_batch.spans_in(line) for line in lines]
    assert ids == [1] * len(lines)
    spans = {(span.context.trace_id, span.context.span_id) for line in lines for span in spans_of(line)}
    assert len(spans) == len(lines)


@pytest.mark.parametrize("code", ["e", "f", "d", "b", "B", "h", "H", "i", "I", "q", "Q", "?"])
def test_each_type_of_number_is_exact(code):
    """The values are those that the caller's array holds."""
    values = [0, 1, True] if code == "?" else [0, 1, 3]
    column = PackedColumn("score", "x", code, struct.pack(f"<3{code}", *values))
    index = PackedColumn("sample_index", "", "q", struct.pack("<3q", 0, 1, 2))
    lines = list(score_batch.expanded(line_of([column, index], 3, **{semconv.STEP: 1})))
    found = [evaluations.recorded_in(span.attributes or {}, 0) for line in lines for span in spans_of(line)]
    assert [score.value for score in found if score] == [bool(v) if code == "?" else float(v) for v in values]


def test_scores_by_id_are_below_their_trajectories():
    """They have the ids of the trajectory, and the origin of a score from outside."""
    ids = PackedColumn("trace", "", score_columns.IDS, bytes.fromhex("ab" * 16 + "cd" * 8))
    (line,) = score_batch.expanded(line_of([ids, PackedColumn("score", "x", "d", struct.pack("<d", 0.5))], 1))
    (span,) = spans_of(line)
    assert (f"{span.context.trace_id:x}", f"{span.parent.span_id:x}") == ("ab" * 16, "cd" * 8)
    assert span.parent.is_remote
    assert span.attributes[semconv.SCORE_ORIGIN] == semconv.ORIGIN_OUTSIDE


def test_values_per_token_are_attributes_of_one_score():
    """A number that JSON lacks is null; a trajectory without values has none."""
    tokens, _ = captured.tokens("logprob", [[0.5, math.nan, -math.inf], None, []])
    count = PackedColumn("score", "training_tokens", "q", struct.pack("<3q", 3, 0, 0), b"\1\0\1")
    other = PackedColumn("score", "reward", "d", struct.pack("<3d", 1, 2, 3))
    lines = list(score_batch.expanded(line_of([tokens, count, other], 3)))
    found = [
        (span.name, (span.attributes or {}).get("rollout.tokens.logprob"))
        for line in lines
        for span in spans_of(line)
    ]
    assert found == [
        ("score training_tokens", "[0.5,null,null]"),
        ("score reward", None),
        ("score reward", None),
        ("score training_tokens", "[]"),
        ("score reward", None),
    ]


@given(st.lists(ROW, min_size=1, max_size=12))
def test_of_several_rows_of_a_trajectory_the_last_is_the_newest(rows):
    """By a microsecond at least, which all readers tell apart; the first row has the time of the batch."""
    newest: dict[tuple, int] = {}
    for line in score_batch.expanded(batch_of(rows)):
        for span in spans_of(line):
            known = span.attributes or {}
            if evaluations.recorded_in(known, 0) is None:
                continue
            key = known[semconv.STEP], known[semconv.SAMPLE_INDEX], span.name
            assert span.start_time == span.end_time
            assert span.start_time - newest.get(key, 0) >= 1000
            assert 1000 <= span.start_time < 1000 + 1000 * len(rows)
            newest[key] = span.start_time


def test_steps_of_a_batch_are_counted():
    """Each score counts for its trajectory's step; those that a cursor has passed do not."""
    line = batch_of([(1.0, 2.0, 3, 0, None), (1.0, None, 4, 0, None)])
    assert score_batch.steps_in(line) == {StepKey("3", False): 2, StepKey("4", False): 1}
    assert score_batch.steps_in(line, 2) == {StepKey("4", False): 1}


@given(st.lists(ROW, min_size=1, max_size=4), st.integers(0), st.integers(0, 255))
def test_a_damaged_batch_is_one_line_or_readable_lines(rows, at, byte):
    """No damage raises, and no more scores come out than the line has bytes."""
    line = bytearray(batch_of(rows))
    line[at % (len(line) - 1)] = byte
    lines = list(score_batch.expanded(bytes(line)))
    assert lines == [bytes(line)] or all(each.endswith(b"\n") for each in lines)
    assert len(lines) <= len(line)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 10**9},
        {"rows": -1},
        {"columns": [["score", 0, "d", False]]},
        {"columns": [["x", 0, "d", False]]},
    ],
)
def test_columns_that_do_not_fit_the_data_are_no_batch(change):
    """The line stays as it is."""
    line = batch_of([(1.0, 2.0, 3, 0, None)])
    parsed = orjson.loads(line)
    for entry in parsed["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]:
        if entry["key"] == semconv.SCORE_BATCH:
            known = orjson.loads(entry["value"]["stringValue"])
            entry["value"]["stringValue"] = orjson.dumps(known | change).decode()
    damaged = orjson.dumps(parsed) + b"\n"
    assert score_batch.is_batch(damaged)
    assert list(score_batch.expanded(damaged)) == [damaged]
