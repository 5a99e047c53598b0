"""Rows of the rollout table: every column, its type, and values that are odd."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from arro3.core import DataType
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from otel_rollout.otlp import evaluations, model_calls
from otel_rollout.otlp.json_line import spans_of
from otel_rollout.otlp.span import Span
from otel_rollout.table import rows, schema
from otel_rollout.table.rows import Row, batch_of
from otel_rollout.table.spans import span_of
from tests.otlp.recorded_foreign import LIBRARIES, calls_in, exported
from tests.sdk_spans import decoded

TRACE, SPAN, PARENT = (1 << 127) + 1, (1 << 63) + 2, 3
START = 1_767_225_600_123_456_789
EVENTS = f'[{{"name":"exception","time_ns":{START + 5},"attributes":{{"exception.type":"ValueError"}}}}]'
CONVERSATION = [
    {"role": "system", "content": "Answer."},
    {"role": "user", "content": "3+4?"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]},
    {"role": "tool", "content": "7", "tool_call_id": "1"},
]


def row_of(span: ReadableSpan | Span) -> Row:
    return rows.row_of(decoded(span))


def context(span_id: int = SPAN) -> SpanContext:
    return SpanContext(TRACE, span_id, False, TraceFlags(1))


def span(
    attributes: Mapping[str, Any] | None = None,
    *,
    name: str = "operation",
    parent: int | None = PARENT,
    scope: str = "otel_rollout",
    resource: Mapping[str, Any] | None = None,
    **fields: Any,
) -> ReadableSpan:
    """Make a span of a trajectory with these attributes."""
    return ReadableSpan(
        name,
        context=context(),
        parent=None if parent is None else context(parent),
        resource=Resource(dict(resource or {})),
        attributes=dict(attributes or {}),
        instrumentation_scope=InstrumentationScope(scope),
        start_time=START,
        end_time=START + 1_500_000_000,
        **fields,
    )


def call(input_: Any, output: Any, scope: str = "otel_rollout", **attributes: Any) -> dict[str, Any]:
    """Return the row of a model call."""
    content = {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps(input_),
        "input.mime_type": "application/json",
        "output.value": json.dumps(output),
        "output.mime_type": "application/json",
    }
    return row_of(span({**content, **attributes}, scope=scope))


def test_every_column_is_filled_from_the_span() -> None:
    """Each attribute with a column is in that column alone, and no column stays empty."""
    given = {
        "rollout.project_name": "p",
        "rollout.experiment_name": "e",
        "rollout.step": 3,
        "rollout.sample_index": 7,
        "rollout.rollout_n": 1,
        "rollout.validate": True,
        "rollout.group_id": "g",
        "rollout.group_size": 8,
        "rollout.agent_name": "a",
        "rollout.policy_version_min": 1,
        "rollout.policy_version_max": 2,
        "openinference.span.kind": "LLM",
        "gen_ai.request.model": "qwen",
        "gen_ai.tool.name": "add",
        "error.type": "ValueError",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.response.finish_reasons": ["stop"],
        "rollout.turn.continues": "8f1c22ab90d3e477",
        "rollout.turn.shared": 2,
        "rollout.turn.length": 4,
        "rollout.prefix_break.turn": "8f1c22ab90d3e477",
        "rollout.prefix_break.token": 40,
        "rollout.prefix_break.removed": 2,
        "rollout.prefix_break.added": 1,
        "rollout.prefix_break.kind": "retokenized",
        "rollout.prefix_break.was": "a|b",
        "rollout.prefix_break.became": "ab",
        "input.value": json.dumps({"messages": CONVERSATION}),
        "input.mime_type": "application/json",
        "output.value": '{"response_text": "7<|im_end|>"}',
        "output.mime_type": "application/json",
        "rollout.num_preempted": 0,
    }
    row = row_of(
        span(
            given,
            name="generate",
            resource={"rollout.run.id": "run-1", "service.name": "s", "process.pid": 12},
            status=Status(StatusCode.ERROR, "no room"),
            events=[Event("exception", {"exception.type": "ValueError"}, START + 5)],
            links=[Link(context(9), {"why": "outer"})],
        )
    )
    scored = row_of(
        span(
            {
                "gen_ai.evaluation.name": "reward",
                "gen_ai.evaluation.score.value": 1.0,
                "gen_ai.evaluation.score.label": "True",
                "gen_ai.evaluation.explanation": "right",
                "rollout.score_origin": "outside",
            }
        )
    )
    root = row_of(span({"rollout.score.reward": 0.5, "rollout.score_time.reward": 4}, parent=None))
    assert {name: value for name, value in row.items() if value is not None} == {
        "trace_id": "8" + "0" * 30 + "1",
        "span_id": "8" + "0" * 14 + "2",
        "parent_span_id": "0" * 15 + "3",
        "run_id": "run-1",
        "project": "p",
        "experiment": "e",
        "step": 3,
        "sample_index": "7",
        "rollout_n": 1,
        "validate": True,
        "group_id": "g",
        "group_size": 8,
        "agent_name": "a",
        "policy_version_min": 1,
        "policy_version_max": 2,
        "name": "generate",
        "kind": "LLM",
        "scope": "otel_rollout",
        "model": "qwen",
        "tool_name": "add",
        "is_root": False,
        "start_time": START // 1000,
        "start_ns": START,
        "duration_ns": 1_500_000_000,
        "status": "error",
        "error_type": "ValueError",
        "error_message": "no room",
        "tokens_in": 10,
        "tokens_out": 20,
        "tokens_cached": 5,
        "finish_reason": "stop",
        "messages_system": 1,
        "messages_user": 1,
        "messages_assistant": 1,
        "messages_tool": 1,
        "reply": "7",
        "continues": "8f1c22ab90d3e477",
        "shared": 2,
        "turn_length": 4,
        "break_of": "8f1c22ab90d3e477",
        "break_token": 40,
        "break_removed": 2,
        "break_added": 1,
        "break_kind": "retokenized",
        "break_was": "a|b",
        "break_became": "ab",
        "input": given["input.value"],
        "output": given["output.value"],
        "attributes": '{"gen_ai.response.finish_reasons":["stop"],"rollout.num_preempted":0}',
        "events": EVENTS,
        "links": '[{"trace_id":"80000000000000000000000000000001","span_id":"0000000000000009",'
        '"attributes":{"why":"outer"}}]',
        "resource": '{"process.pid":12}',
        "service": "s",
    }
    assert {name: scored[name] for name in schema.NAMES if name.startswith("score_")} == {
        "score_name": "reward",
        "score_value": 1.0,
        "score_label": "True",
        "score_comment": "right",
        "score_origin": "outside",
        "score_by": "trace",
    }
    named = row_of(span({"rollout.step": "warm-up", "rollout.rollout_n": 1.5}))
    assert (named["step_text"], named["rollout_text"]) == ("warm-up", "1.5")
    assert root["is_root"]
    assert root["scores"] == [{"name": "reward", "value": 0.5, "label": None, "time_ns": 4}]
    found = (row, scored, root, named)
    filled = {name for row in found for name, value in row.items() if value is not None}
    assert filled == set(schema.NAMES)


def test_batch_has_the_types_of_the_schema() -> None:
    """Every column has its Arrow type, also where all rows are null; values come back."""
    made = [row_of(span()), row_of(span({"rollout.score.reward": True, "rollout.step": 2}, parent=None))]
    batch = batch_of(made)
    assert batch.schema == schema.arrow_schema()
    assert batch.num_rows == 2
    assert batch.column("step").to_pylist() == [None, 2]
    assert batch.column("start_time").type == DataType.timestamp("us", tz="UTC")
    seconds = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    assert batch.column("start_time").to_pylist() == [seconds] * 2
    scores = [{"name": "reward", "value": 1.0, "label": "True", "time_ns": None}]
    assert batch.column("scores").to_pylist() == [None, scores]


@pytest.mark.parametrize(
    ("name", "value", "column"),
    [
        ("rollout.step", "03", "step"),
        ("rollout.step", "warm-up", "step"),
        ("rollout.step", True, "step"),
        ("rollout.step", 3.0, "step"),
        ("rollout.validate", 1, "validate"),
        ("rollout.project_name", 5, "project"),
        ("rollout.group_id", ["a"], "group_id"),
        ("gen_ai.usage.input_tokens", 1.5, "tokens_in"),
        ("gen_ai.usage.output_tokens", -1, "tokens_out"),
        ("input.value", 5, "input"),
        ("error.type", 7, "error_type"),
        ("rollout.step", 1 << 70, "step"),
    ],
)
def test_attribute_of_another_type_stays_an_attribute(name: str, value: Any, column: str) -> None:
    """A value that its column cannot hold is in ``attributes``, with its type."""
    row = row_of(span({name: value}))
    assert row.get(column) is None
    shown = str(value) if value == 1 << 70 else value
    assert json.loads(row["attributes"])[name] == shown
    batch_of([row])


@pytest.mark.parametrize(
    ("index", "column", "attribute"),
    [
        (7, "7", None), ("row-7", "row-7", None), ("7", "7", "7"), (-7, "-7", None), ("", "", None),
        (3.5, "3.5", 3.5), (True, "True", True),
    ],
)  # fmt: skip
def test_dataset_row_keeps_its_type(index: Any, column: str, attribute: Any) -> None:
    """Text that looks like a number, and another type, is an attribute too: nobody could tell them apart."""
    row = row_of(span({"rollout.sample_index": index}))
    assert row["sample_index"] == column
    attributes = json.loads(row["attributes"] or "{}")
    assert attributes.get("rollout.sample_index") == attribute


@pytest.mark.parametrize(
    ("attributes", "value", "label", "left"),
    [
        ({"gen_ai.evaluation.score.value": 0.25}, 0.25, None, set()),
        ({"gen_ai.evaluation.score.value": 3}, 3.0, None, {"gen_ai.evaluation.score.value"}),
        ({"gen_ai.evaluation.score.label": "good"}, None, "good", set()),
        (
            {"gen_ai.evaluation.score.value": 0.0, "gen_ai.evaluation.score.label": "False"},
            0.0,
            "False",
            set(),
        ),
        (
            {"gen_ai.evaluation.score.value": float("nan")},
            None,
            "nan",
            {"gen_ai.evaluation.score.value"},
        ),
    ],
)
def test_score_of_an_evaluation_span(
    attributes: dict[str, Any], value: float | None, label: str | None, left: set[str]
) -> None:
    """Numbers, labels and bools are told apart; a value without its exact type stays an attribute."""
    row = row_of(span({"gen_ai.evaluation.name": "s", **attributes}, parent=None))
    assert (row["score_name"], row["score_value"], row["score_label"]) == ("s", value, label)
    assert not row["is_root"]
    assert set(json.loads(row["attributes"] or "{}")) == left


def test_score_by_identity_has_the_identity_it_names() -> None:
    """It is no root, though it is the only span of its trace; its row becomes the span again."""
    given = {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": 0.5,
        "rollout.score_origin": "identity",
        "rollout.project_name": "p",
        "rollout.experiment_name": "e",
        "rollout.step": 3,
        "rollout.sample_index": 7,
        "rollout.rollout_n": 1,
        "rollout.validate": True,
    }
    row = row_of(span(given, parent=None))
    columns = (
        "score_by",
        "is_root",
        "project",
        "experiment",
        "step",
        "sample_index",
        "rollout_n",
        "validate",
    )
    assert [row[name] for name in columns] == ["identity", False, "p", "e", 3, "7", 1, True]
    assert span_of(dict.fromkeys(schema.NAMES) | row).attributes == given


def test_evaluation_without_a_value_is_no_score() -> None:
    """Its attributes stay attributes."""
    row = row_of(span({"gen_ai.evaluation.name": "s"}))
    assert row.get("score_name") is None
    assert row.get("score_by") is None
    assert json.loads(row["attributes"]) == {"gen_ai.evaluation.name": "s"}


@pytest.mark.parametrize("count", [-1, 0, 2**48 - 1, 2**48, 2**63 - 1])
def test_column_holds_what_counts_as_tokens(count: int) -> None:
    """A number of which no sum could be stored stays an attribute, as everywhere."""
    given = {"openinference.span.kind": "LLM", "gen_ai.usage.input_tokens": count}
    row = row_of(span(given))
    assert row.get("tokens_in") == model_calls.counts_of(given).get("gen_ai.usage.input_tokens")
    assert ("tokens_in" in row) is (0 <= count < 2**48)
    assert span_of(dict.fromkeys(schema.NAMES) | row).attributes == given


@pytest.mark.parametrize("label", [True, 3, "good", "True", None])
@pytest.mark.parametrize("value", [0.25, 1, True, float("nan"), "x", None])
@pytest.mark.parametrize("comment", [7, ["a"], "why", None])
def test_row_and_trackers_have_the_same_score(value: Any, label: Any, comment: Any) -> None:
    """Another library's label or comment that is no text counts as absent, in the table as in MLflow."""
    given = {
        "gen_ai.evaluation.score.value": value,
        "gen_ai.evaluation.score.label": label,
        "gen_ai.evaluation.explanation": comment,
    }
    known = {name: each for name, each in given.items() if each is not None}
    recorded = span({"gen_ai.evaluation.name": "s", **known})
    row, score = row_of(recorded), evaluations.recorded_in(decoded(recorded).attributes, 0)
    told = evaluations.value_of(row.get("score_value"), row.get("score_label"))
    assert (told, row.get("score_comment") or "") == (score and score.value, score.comment if score else "")


def test_scores_that_a_root_repeats() -> None:
    """Each has number, label and time; an integer and a time that is no time stay attributes."""
    given = {
        "rollout.score.a": 1,
        "rollout.score_time.a": 5,
        "rollout.score.b": False,
        "rollout.score.c": "good",
        "rollout.score_time.c": "noon",
        "rollout.score.d": float("inf"),
        "rollout.score.e": [1],
    }
    row = row_of(span(given, parent=None))
    assert row["scores"] == [
        {"name": "a", "value": 1.0, "label": None, "time_ns": 5},
        {"name": "b", "value": 0.0, "label": "False", "time_ns": None},
        {"name": "c", "value": None, "label": "good", "time_ns": None},
        {"name": "d", "value": None, "label": "inf", "time_ns": None},
    ]
    assert json.loads(row["attributes"]) == {
        "rollout.score.a": 1,
        "rollout.score_time.c": "noon",
        "rollout.score.d": "inf",
        "rollout.score.e": [1],
    }
    assert row_of(span(given)).get("scores") is None


def test_odd_values_become_json() -> None:
    """Bytes, infinities, big integers, nested and empty values are text in JSON."""
    given = {
        "bytes": b"\x00\xff",
        "nan": float("nan"),
        "big": 1 << 80,
        "list": [1, 2.5, "x", None, float("-inf")],
        "object": {"a": {"b": [True]}},
        "none": None,
        "": "empty name",
        "zero": "\x00",
    }
    row = row_of(ReadableSpan("odd", context=context(), resource=Resource({}), attributes=given))  # type: ignore[arg-type]
    assert json.loads(row["attributes"]) == {
        "bytes": {"base64": "AP8="},
        "nan": "nan",
        "big": str(1 << 80),
        "list": [1, 2.5, "x", None, "-inf"],
        "object": {"a": {"b": [True]}},
        "none": None,
        "": "empty name",
        "zero": "\x00",
    }
    assert batch_of([row]).column("attributes").to_pylist() == [row["attributes"]]


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    """An application's own SDK may hold such text anywhere in a span."""
    half = "a\ud800"
    for given in (
        span({"rollout.group_id": half}),
        span({"other": half}),
        span({"input.value": half}),
        span(name=half),
        span({"rollout.sample_index": half}),
        span(resource={"host": half}),
        span(events=[Event("e", {"x": half}, 1)]),
        span(status=Status(StatusCode.ERROR, half)),
        span({"rollout.score." + half: 1.0}, parent=None),
    ):
        row = row_of(given)
        assert "a?" in orjson.dumps(row).decode()
        batch_of([row])


def test_times_beyond_a_column_are_cut() -> None:
    """OTLP's times have 64 bits without sign, and a column's integers have a sign."""
    line = {
        "traceId": f"{TRACE:032x}",
        "spanId": f"{SPAN:016x}",
        "startTimeUnixNano": str((1 << 64) - 2),
        "endTimeUnixNano": str((1 << 64) - 1),
    }
    [late] = spans_of(orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [line]}]}]}))
    row = row_of(late)
    assert (row["start_ns"], row["duration_ns"]) == ((1 << 63) - 1, 0)
    batch_of([row])


@pytest.mark.parametrize(
    ("mime_type", "shown"),
    [
        ("application/json", {}),
        ("text/plain", {"input.mime_type": "text/plain"}),
        (None, {"input.mime_type": None}),
    ],
)
def test_type_of_an_input_is_told_unless_it_is_json(mime_type: str | None, shown: dict[str, Any]) -> None:
    """JSON is the rule; text, and an input without a type, are in ``attributes``."""
    given = {"input.value": "[1]"} | ({"input.mime_type": mime_type} if mime_type else {})
    row = row_of(span(given))
    assert row["input"] == "[1]"
    assert json.loads(row["attributes"] or "{}") == shown


@pytest.mark.parametrize(
    ("input_", "counts"),
    [
        ({"messages": CONVERSATION}, (1, 1, 1, 1)),
        ({"kwargs": {"messages": CONVERSATION[:2]}}, (1, 1, 0, 0)),
        (CONVERSATION[1:2], (0, 1, 0, 0)),
        (
            {"messages": [{"role": "developer", "content": "x"}, {"role": "human", "content": "y"}]},
            (1, 1, 0, 0),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "7"}]}]},
            (0, 0, 0, 1),
        ),
        (
            {
                "input": [
                    {"role": "user", "content": "Hi"},
                    {"type": "reasoning", "summary": []},
                    {"type": "message", "role": "assistant", "content": "I look."},
                    {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "a", "output": "7"},
                ]
            },
            (0, 1, 1, 1),
        ),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "7"}]}, (0, 0, 0, 1)),
        ({"prompt_ids": [1, 2, 3]}, (None,) * 4),
        ({"messages": []}, (None,) * 4),
        ({"messages": "a role"}, (None,) * 4),
        ({"messages": [{"role": "narrator", "content": ""}]}, (None,) * 4),
    ],
)
def test_messages_of_a_model_call_are_counted_by_role(input_: Any, counts: tuple[int | None, ...]) -> None:
    """Tool results inside a message count as messages of a tool; unknown counts are null."""
    row = call(input_, "x")
    columns = ("messages_system", "messages_user", "messages_assistant", "messages_tool")
    assert tuple(row.get(column) for column in columns) == counts


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    """Return a chunk of a stream in OpenAI's form."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


@pytest.mark.parametrize(
    ("output", "reply", "reason"),
    [
        ({"response_text": "hello<|im_end|>\n"}, "hello", None),
        (
            {"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "length"}]},
            "hi",
            "length",
        ),
        (
            {
                "object": "response",
                "output": [{"type": "message", "role": "assistant", "content": "so"}],
                "incomplete_details": {"reason": "max_output_tokens"},
            },
            "so",
            "max_output_tokens",
        ),
        (
            {
                "output": [
                    {"type": "reasoning", "summary": []},
                    {"type": "message", "role": "assistant", "content": "so"},
                ]
            },
            "so",
            None,
        ),
        (
            {"output": [{"role": "assistant", "content": "all"}], "incomplete_details": None},
            "all",
            None,
        ),
        (
            [
                chunk({"role": "assistant", "content": ""}),
                chunk({"content": "4", "tool_calls": None}),
                {"choices": [], "usage": {"total_tokens": 9}},
                chunk({"content": "2"}),
                chunk({}, "stop"),
            ],
            "42",
            "stop",
        ),
        (
            [chunk({"tool_calls": [{"index": 0}]})],
            json.dumps([chunk({"tool_calls": [{"index": 0}]})], separators=(",", ":")),
            None,
        ),
        ("plain", "plain", None),
        (["one", "another"], "one\n\nanother", None),
        ([*CONVERSATION, {"role": "assistant", "content": "7"}], "7", None),
        ({"response_ids": [1, 2]}, None, None),
        (None, None, None),
        ({"choices": []}, '{"choices":[]}', None),
    ],
)
def test_reply_of_a_model_call(output: Any, reply: str | None, reason: str | None) -> None:
    """The text is in column ``reply``, without tokens that end a message; streamed chunks are joined."""
    row = call({}, output)
    assert (row["reply"], row["finish_reason"]) == (reply, reason)


@pytest.mark.parametrize("items", [["Hel", "lo ", "7"], ["Hel", "lo 7"], ["Hello 7"]])
def test_texts_that_a_generator_yields_are_one_reply(items: list[str]) -> None:
    """They are joined as they came; texts that a function returns are several replies."""
    streamed = call({}, items, **{"rollout.generator.items": len(items)})
    assert streamed["reply"] == "Hello 7"


def test_tool_has_a_name() -> None:
    """Its attribute, the argument that names it, or the span's name."""
    tool = {"openinference.span.kind": "TOOL"}
    named = {**tool, "input.value": '{"name": "add", "arguments": {}}', "input.mime_type": "application/json"}
    assert row_of(span(tool, name="search"))["tool_name"] == "search"
    assert row_of(span(named, name="call_tool"))["tool_name"] == "add"
    assert row_of(span({**named, "gen_ai.tool.name": "sub"}))["tool_name"] == "sub"
    assert row_of(span({"tool.name": "x", **tool}, scope="other"))["tool_name"] == "x"


def test_error_is_that_of_the_exception_event_if_nothing_else_names_it() -> None:
    """The status's message wins over the exception's; a span that did not fail has neither."""
    raised = [Event("exception", {"exception.type": "KeyError", "exception.message": "'x'"}, 1)]
    failed = row_of(span(events=raised, status=Status(StatusCode.ERROR)))
    assert (failed["status"], failed["error_type"], failed["error_message"]) == ("error", "KeyError", "'x'")
    caught = row_of(span(events=raised, status=Status(StatusCode.OK)))
    assert (caught["status"], caught.get("error_type"), caught.get("error_message")) == ("ok", None, None)


@pytest.mark.parametrize("library", LIBRARIES)
def test_model_calls_of_other_libraries_have_roles_and_reply(library: str) -> None:
    """In any vocabulary, a call with content has a user's message, and a reply or a tool call."""
    batch_of([row_of(found) for found in exported(library)])
    for row in (row_of(found) for found in calls_in(exported(library))):
        assert row["kind"] == "LLM"
        assert bool(row.get("messages_user")) == ("input" in row)
        assert row["reply"] or any(
            sign in row.get("output", "tool_calls") for sign in ("tool_calls", "function")
        )


def test_columns_are_documented() -> None:
    """Each column has a sentence, and each name occurs once."""
    assert len(set(schema.NAMES)) == len(schema.COLUMNS)
    assert all(column.meaning.endswith(".") for column in schema.COLUMNS)
    assert set(schema.STATISTICS) < set(schema.NAMES)
    described = schema.arrow_schema().field("step").metadata
    assert described == {b"comment": b"Training step of the trajectory."}


@pytest.mark.parametrize(("name", "column"), [("rollout.step", "step"), ("rollout.rollout_n", "rollout_n")])
def test_integer_in_text_is_in_the_column(name: str, column: str) -> None:
    """A score that names step "3" fits step 3, as in the tags of other destinations; the text stays."""
    row = row_of(span({name: "-3"}))
    assert row[column] == -3
    assert json.loads(row["attributes"])[name] == "-3"
    assert (span_of(dict.fromkeys(schema.NAMES) | row).attributes or {})[name] == "-3"


def test_kind_is_that_of_openinference_in_any_case() -> None:
    """As in metrics and in MLflow; another library's own kind stays."""
    kinds = [
        row_of(span({"openinference.span.kind": kind}))["kind"] for kind in ("llm", "Tool", "guard rail")
    ]
    assert kinds == ["LLM", "TOOL", "guard rail"]


@pytest.mark.parametrize("count", [5.0, "5"])
def test_count_of_tokens_that_is_no_integer_counts_on_a_span_of_any_library(count: Any) -> None:
    """As in traces that come back from MLflow, which does not keep the name of the library."""
    given = {"openinference.span.kind": "LLM", "gen_ai.usage.input_tokens": count}
    row = row_of(span(given))
    assert row["tokens_in"] == 5


def test_counts_under_another_name_on_our_own_span_count() -> None:
    """An application may set an older name of the convention, which trackers count, too."""
    given = {
        "openinference.span.kind": "LLM",
        "gen_ai.usage.prompt_tokens": 12,
        "gen_ai.usage.completion_tokens": 3,
    }
    row = row_of(span(given))
    assert (row["tokens_in"], row["tokens_out"]) == (12, 3)
