"""Draw spans with any values that the SDK or a segment may hold."""

from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_rollout.base import semconv

KEYS = [value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)]
NAMES = [
    *KEYS,
    *("mlflow.spanType", "mlflow.traceTag.x", "mlflow.spanInputs", "weave.kind", "weave", "otel", "a", "a.b"),
    *("a.b.c", ".", "..", "", "rollout.", "rollout.score.", "rollout.score.r", "rollout.weave", "feedback"),
    *("rollout.score." + "n" * 300, "input.value.x", "rollout.a.b", "\x00", "k" * 5000),
]
text = st.text(st.characters(), max_size=8) | st.sampled_from(
    [
        *("", "\x00", "\ud800", "a\udfff", "\U0001f600" * 300, "x" * 5000, "{", "[1, 2", '"', '{"a": NaN}'),
        *(
            '{"a": 1}',
            "[1, 2]",
            '{"a": "\\ud800"}',
            "NaN",
            "Infinity",
            "1e999",
            "123456789012345678901234567890",
        ),
        *("[" * 2000 + "]" * 2000, '{"a":' * 500 + "1" + "}" * 500, "true", "null", "application/json"),
        *("application/json; charset=utf-8", "LLM", "chat", "wandb.x", "True", "False", "x" * 300),
    ]
)
scalar = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1])
    | st.floats()
    | text
    | st.binary(max_size=8)
)
value = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
attributes = st.dictionaries(st.sampled_from(NAMES) | text, value, max_size=6)
time_ns = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 999, 2**63 - 1, 2**63, 2**64 - 1])
ids = st.integers(1, 4)
context = st.builds(
    lambda trace_id, span_id, remote: SpanContext(trace_id, span_id, remote, TraceFlags(1)),
    ids | st.just(2**128 - 1),
    ids | st.just(2**64 - 1),
    st.booleans(),
)
status = st.sampled_from([Status(StatusCode.UNSET), Status(StatusCode.OK)]) | text.map(
    lambda said: Status(StatusCode.ERROR, said)
)
events = st.lists(st.builds(Event, text | st.just("exception"), attributes, time_ns), max_size=3)
span = st.builds(
    ReadableSpan,
    name=text,
    context=context,
    parent=st.none() | context,
    resource=st.builds(Resource, st.dictionaries(st.sampled_from(NAMES), text, max_size=2)),
    attributes=attributes,
    events=events,
    links=st.lists(st.builds(Link, context, attributes), max_size=2),
    kind=st.sampled_from(SpanKind),
    instrumentation_scope=st.builds(InstrumentationScope, text, st.none() | text),
    status=status,
    start_time=time_ns,
    end_time=time_ns,
)
"""Ids are few, so that spans share them, are their own parents, and stand in a circle."""

spans = st.lists(span, min_size=1, max_size=6)
