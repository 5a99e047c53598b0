"""A few spans with fixed ids and times, and with everything that an exporter maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

START_NS = 1_700_000_000_000_000_123
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
JSON = "application/json"
IDENTITY: Mapping[str, Any] = {
    "rollout.project_name": "search-agent",
    "rollout.experiment_name": "grpo",
    "rollout.step": 29,
    "rollout.sample_index": 7,
    "rollout.rollout_n": 3,
    "rollout.validate": False,
}
STACK = 'Traceback (most recent call last):\n  File "agent.py", line 7, in call\n    tool()\nValueError: no'
ERROR = Status(StatusCode.ERROR, "ValueError: no")
RAISED = {"exception.type": "ValueError", "exception.message": "no", "exception.stacktrace": STACK}


def context(span_id: int, *, is_remote: bool = False) -> SpanContext:
    """Return the context of one of the spans."""
    return SpanContext(TRACE_ID, span_id, is_remote, TraceFlags(1))


def span(
    span_id: int,
    name: str,
    parent: SpanContext | None = None,
    attributes: Mapping[str, Any] | None = None,
    *,
    resource: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] = IDENTITY,
    status: Status | None = None,
    events: Sequence[Event] = (),
    links: Sequence[Link] = (),
    kind: SpanKind = SpanKind.INTERNAL,
) -> ReadableSpan:
    """Make a span that starts ``span_id`` ms after START_NS and takes 5 ms."""
    start = START_NS + span_id * 1_000_000
    return ReadableSpan(
        name=name,
        context=context(span_id),
        parent=parent,
        resource=Resource(resource if resource is not None else {"rollout.run.id": "run-1"}),
        attributes={**identity, **(attributes or {})},
        events=events,
        links=links,
        kind=kind,
        instrumentation_scope=InstrumentationScope("otel_rollout", "0.1.0"),
        status=status or Status(),
        start_time=start,
        end_time=start + 5_000_000,
    )


def io(inputs: Any = None, output: Any = None, mime_type: str | None = JSON) -> dict[str, Any]:
    """Return the attributes of a recorded input and output."""
    found = {"input.value": inputs, "output.value": output}
    if mime_type is not None:
        found |= {"input.mime_type": mime_type, "output.mime_type": mime_type}
    return {name: value for name, value in found.items() if value is not None}


def roots() -> dict[str, ReadableSpan]:
    """Return roots of trajectories, of scores from outside, and of other traces."""
    scores = {
        "rollout.score.reward": 0.75,
        "rollout.score_time.reward": START_NS + 4_000_000,
        "rollout.score.ok": True,
        "rollout.score.grade": "good",
        "rollout.score.step": 7,
        "rollout.score.mlflow.note": 1,
        "rollout.score.a/../b": 2,
    }
    default = {"openinference.span.kind": "AGENT"}
    extras = {"rollout.split": "train", "rollout.temperature": 0.7, "rollout.ids": [1, 2], "rollout.": "x"}
    agent = {"openinference.span.kind": "AGENT", "rollout.trajectory.name": "", "session.id": "s" * 300}
    validation = {**IDENTITY, "rollout.validate": True, "rollout.step": "last"}
    outside = {
        "gen_ai.evaluation.name": "late",
        "gen_ai.evaluation.score.value": 0.5,
        "gen_ai.evaluation.explanation": "because",
        "rollout.score_origin": "outside",
    }
    service = {"service.name": "trainer", "host.name": "node-1", "rollout.run.id": "run-1"}
    return {
        "trajectory": span(1, "rollout_trace", None, {**io('{"q": 1}', '{"a": 2}'), **scores, **extras}),
        "trajectory with session": span(
            2, "Agent.run", None, {**agent, **io("7", '"text"')}, resource=service
        ),
        "validation": span(3, "rollout_trace", None, io("[1, 2]", "null"), identity=validation, resource={}),
        "named by default": span(9, "rollout_trace", None, default),
        "validation named by default": span(10, "rollout_trace", None, default, identity=validation),
        "failed": span(
            4, "rollout_trace", status=ERROR, events=[Event("exception", RAISED, START_NS + 4_500_000)]
        ),
        "failed without exception": span(5, "rollout_trace", status=Status(StatusCode.ERROR, "cancelled")),
        "unnamed of another library": span(
            6, "", identity={}, resource={"service.name": "unknown_service:python"}, kind=SpanKind.SERVER
        ),
        "score from outside": span(7, "score late", context(1, is_remote=True), outside),
        "output with keys of scores": span(
            8, "rollout_trace", None, {**scores, **io("{}", '{"reward": 0.75, "grade": "bad", "scores": 1}')}
        ),
    }


def operations() -> dict[str, ReadableSpan]:
    """Return spans below a root."""
    usage = {
        "openinference.span.kind": "LLM",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "qwen",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.conversation.id": "c" * 300,
        "rollout.turn.continues": "00000000000000aa",
        "rollout.turn.shared": 4,
    }
    tool = {"openinference.span.kind": "tool", **io('{"city": "Bern"}', None)}
    names = {"a": 1, "a.b": 2, "a.b.c": 3, "otel.scope": "x", "weave": "taken"}
    here, far = context(1), context(1, is_remote=True)
    evaluator = {
        "openinference.span.kind": "EVALUATOR",
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": 0.25,
        "gen_ai.evaluation.explanation": "short",
    }
    label = {"gen_ai.evaluation.name": "grade", "gen_ai.evaluation.score.label": "good"}
    log = Event("log", {"n": float("nan")}, START_NS + 1)
    linked = [Link(SpanContext(0xABC, 0xDEF, True), {"why": "parent"})]
    return {
        "model call": span(16, "chat", here, {**usage, **io('{"ids": [1]}', '{"text": "hi"}')}),
        "model call elsewhere": span(17, "chat", far, {**usage, "gen_ai.usage.output_tokens": True}),
        "model call without kind": span(18, "chat", here, {"gen_ai.operation.name": "text_completion"}),
        "tool": span(
            19,
            "weather",
            here,
            tool,
            status=ERROR,
            events=[Event("exception", {}, START_NS), log],
        ),
        "evaluation": span(20, "score reward", here, evaluator),
        "evaluation with a label": span(21, "score grade", here, label),
        "linked": span(22, "op " + "x" * 200, here, names, links=linked, kind=SpanKind.CLIENT),
        "retriever": span(23, "search", here, {"openinference.span.kind": "RETRIEVER"}, identity={}),
        **{
            f"text {text!r}": span(32 + n, "echo", here, io(text, text, None)) for n, text in enumerate(TEXTS)
        },
        **{f"JSON {text!r}": span(64 + n, "echo", here, io(text, text)) for n, text in enumerate(TEXTS)},
        "plain text": span(96, "echo", here, io('{"no": "JSON"}', "[1]", "text/plain")),
    }


TEXTS = (
    "hello", "[1, 2]", '{"a": 1}', '"quoted"', "3", "3.5", "-9223372036854775808", "9223372036854775808",
    "NaN", "Infinity", "true", "null", "", " [12345678901234567890123, 1]", "line\u2028end",
    '["\\u2028"]', "{broken", "1e400",
)  # fmt: skip
"""Recorded texts, some of which a backend would take for something else."""
