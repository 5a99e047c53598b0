"""From an OpenTelemetry span to what MLflow understands: pure functions, no MLflow and no I/O.

MLflow reads its own attribute names (``mlflow.*``) from OTLP spans, trace tags from the *root* span's
``mlflow.traceTag.<key>``, and turns every resource attribute into a trace tag. See
``mlflow/server/otel_api.py`` and ``SqlAlchemyStore.log_spans`` (read at 3.17).
"""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.base import semconv
from otel_rollout.exporting.encodable import encodable
from otel_rollout.otlp import evaluations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import SpanContext
    from opentelemetry.util.types import AttributeValue

    from otel_rollout.otlp.evaluations import Evaluation

SPAN_INPUTS: Final = "mlflow.spanInputs"
SPAN_OUTPUTS: Final = "mlflow.spanOutputs"
SPAN_TYPE: Final = "mlflow.spanType"
TRACE_TAG_PREFIX: Final = "mlflow.traceTag."
TRACE_NAME_TAG: Final = "mlflow.traceName"

# MLflow refuses the whole request for a longer value of these two, so they are cut here.
MAX_SESSION_CHARS: Final = 250
MAX_TRACE_NAME_CHARS: Final = 4096
MAX_FEEDBACK_NAME_CHARS: Final = 250
# MLflow cuts a longer value, or drops the tag, as its server is set up.
MAX_TAG_CHARS: Final = 8000
MAX_TAG_NAME_CHARS: Final = 250

SOURCE_ID: Final = "otel-rollout"
"""Who wrote a Feedback, as MLflow keeps it."""
TIME_METADATA: Final = "rollout.score_time"
"""Metadata of a Feedback: when the score was given, Unix time in ns."""
TAGGED_METADATA: Final = "rollout.score_tagged"
"""Metadata of a Feedback: it is the trajectory's, so that the newest of them is a tag of the trace."""

MARK: Final = {TAGGED_METADATA: "true"}

Rank = tuple[bool, int, bool]
"""Whether a score's time is known, that time, whether it is explained: of two scores the greater counts."""

RESOURCE_ATTRIBUTES: Final = (
    semconv.RUN_ID,
    semconv.SERVICE_NAME,
    "service.namespace",
    "service.version",
    "deployment.environment.name",
)
"""The resource attributes worth a tag on every trace; ids of processes and files are not."""

_SPAN_TYPE_OF_KIND: Final = {
    semconv.KIND_AGENT: "AGENT",
    semconv.KIND_CHAIN: "CHAIN",
    semconv.KIND_EVALUATOR: "EVALUATOR",
    semconv.KIND_LLM: "LLM",
    semconv.KIND_TOOL: "TOOL",
    "EMBEDDING": "EMBEDDING",
    "GUARDRAIL": "GUARDRAIL",
    "RERANKER": "RERANKER",
    "RETRIEVER": "RETRIEVER",
}
# MLflow translates these too, but too late for its span table's type column, which `span.type = 'TOOL'`
# searches.
_SPAN_TYPE_OF_OPERATION: Final = {
    "chat": "CHAT_MODEL",
    "create_agent": "AGENT",
    "embeddings": "EMBEDDING",
    "execute_tool": "TOOL",
    "generate_content": "LLM",
    "invoke_agent": "AGENT",
    "text_completion": "LLM",
}
_MAPPED_BY_NAME: Final = frozenset(
    {
        semconv.INPUT_VALUE,
        semconv.INPUT_MIME_TYPE,
        semconv.OUTPUT_VALUE,
        semconv.OUTPUT_MIME_TYPE,
    }
)
# Tags under this prefix are MLflow's own: an attribute or a score must not overwrite them.
_BOOKKEEPING: Final = "mlflow."
_DECODED_BY_MLFLOW: Final = frozenset('{["')
_LONG_DIGITS: Final = 19
_LONG_NUMBER: Final = re.compile(f"[0-9]{{{_LONG_DIGITS}}}")
_DIGIT: Final = re.compile("[0-9]")
_MAX_OTLP_INT: Final = 2**63
_IDENTITY_TAGS: Final = tuple(name for name in semconv.IDENTITY if name != semconv.PROJECT_NAME)
"""The project is the experiment already."""
_TAG_NAME: Final = re.compile(r"[/\w.\- :]+")
_NOT_FOR_SCORES: Final = frozenset(
    {*RESOURCE_ATTRIBUTES, *(name.removeprefix(semconv.EXTRA_PREFIX) for name in semconv.IDENTITY)}
)
"""Tags that say which trajectory it is: a score of such a name is Feedback alone."""


@dataclass(frozen=True)
class Feedback:
    """A score as MLflow's Feedback assessment.

    Attributes:
        trace_id: MLflow's id of the trace.
        span_id: the span that was scored, 16 hex digits.
        name: what was scored; ``feedback.<name> > 0.2`` finds it.
        value: the score.
        time_ns: when it was given, Unix time in ns.
        is_dated: False for a root's score whose own time nobody recorded.
        rationale: why, if the scorer said so.
        tagged: whether it is one of those the newest of which is the trace's tag of that name.
    """

    trace_id: str
    span_id: str
    name: str
    value: float | bool | str
    time_ns: int
    is_dated: bool = True
    rationale: str | None = None
    tagged: bool = False

    @property
    def id(self) -> str:
        """The same for the same score of the same span, so sending it again changes nothing."""
        key = f"{self.trace_id}/{self.span_id}/{self.name}".encode(errors="replace")
        return f"a-{hashlib.sha256(key).hexdigest()[:32]}"

    @property
    def rank(self) -> Rank:
        """Orders scores: of two the greater counts."""
        return self.is_dated, self.time_ns if self.is_dated else 0, bool(self.rationale)

    @property
    def metadata(self) -> dict[str, str]:
        """What MLflow keeps beside the value: its own times are in ms, and move with each update."""
        time = {TIME_METADATA: str(self.time_ns)} if self.is_dated else {}
        return {**time, **(MARK if self.tagged else {})}

    @property
    def tag_text(self) -> str:
        """The value as a trace tag."""
        return tag_text(self.value)


def rank_of(assessment: Mapping[str, Any]) -> Rank:
    """The rank of a score that MLflow has, as its API describes it."""
    time = str((assessment.get("metadata") or {}).get(TIME_METADATA, ""))
    return time.isdecimal(), int(time) if time.isdecimal() else 0, bool(assessment.get("rationale"))


def is_tagged(assessment: Mapping[str, Any]) -> bool:
    """Whether a score that MLflow has is one of those the newest of which is the trace's tag."""
    return TAGGED_METADATA in (assessment.get("metadata") or {})


@dataclass(frozen=True)
class RunningTrace:
    """A trajectory that has begun and not ended, as MLflow lists it.

    Attributes:
        trace_id: MLflow's id of the trace.
        start_ns: when it began, Unix time in ns.
        tags: its tags, the name among them.
        session: MLflow session it belongs to.
    """

    trace_id: str
    start_ns: int
    tags: dict[str, str]
    session: str | None


def running_trace(root: ReadableSpan) -> RunningTrace:
    """What is known of a trajectory while it runs, from its root span."""
    root = encodable(root)
    attributes = root.attributes or {}
    session = attributes.get(semconv.SESSION_ID) or session_of(attributes)
    resource = useful_resource(root.resource).attributes
    return RunningTrace(
        trace_id=trace_id_of(root),
        start_ns=root.start_time or 0,
        tags={
            **{name: tag_text(value) for name, value in resource.items()},
            **trace_tags(attributes),
            TRACE_NAME_TAG: semconv.name_of_trace(root.name, attributes)[:MAX_TRACE_NAME_CHARS],
        },
        session=str(session)[:MAX_SESSION_CHARS] if session else None,
    )


def trace_id_of(span: ReadableSpan) -> str:
    """The id MLflow gives the span's trace; it cannot be chosen."""
    return f"tr-{_context(span).trace_id:032x}"


def is_root(span: ReadableSpan) -> bool:
    """Whether the span is the one MLflow takes a trace's tags, previews and state from."""
    return span.parent is None


def is_given_outside(span: ReadableSpan) -> bool:
    """Whether the span is a score that was given from outside its trajectory, maybe long after it.

    MLflow counts a trace's duration up to the end of its last span, so such a score is Feedback and no span.
    """
    attributes = span.attributes or {}
    is_score = semconv.GEN_AI_EVALUATION_NAME in attributes
    return is_score and attributes.get(semconv.SCORE_ORIGIN) == semconv.ORIGIN_OUTSIDE


def to_mlflow(span: ReadableSpan) -> ReadableSpan:
    """The same span with the attributes MLflow reads, and with nothing said twice."""
    span = encodable(span)
    source = span.attributes or {}
    attributes = {key: value for key, value in source.items() if key not in _MAPPED_BY_NAME}
    _set(attributes, SPAN_INPUTS, _payload(source, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE))
    _set(attributes, SPAN_OUTPUTS, _payload(source, semconv.OUTPUT_VALUE, semconv.OUTPUT_MIME_TYPE))
    _set(attributes, SPAN_TYPE, source.get(SPAN_TYPE) or span_type(source))
    if is_root(span):
        for key, text in trace_tags(source).items():
            attributes[TRACE_TAG_PREFIX + key] = text
        name = semconv.name_of_trace(span.name, source)
        attributes[TRACE_TAG_PREFIX + TRACE_NAME_TAG] = name[:MAX_TRACE_NAME_CHARS]
    # On every span of a trajectory: MLflow takes the first it sees, and a model call's conversation id
    # would do where there is no session id.
    if not source.get(semconv.SESSION_ID):
        _set(attributes, semconv.SESSION_ID, session_of(source))
    for key in (semconv.SESSION_ID, semconv.GEN_AI_CONVERSATION_ID):
        if key in attributes:
            attributes[key] = str(attributes[key])[:MAX_SESSION_CHARS]
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=useful_resource(span.resource),
        attributes=attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        instrumentation_scope=span.instrumentation_scope,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
    )


def span_type(attributes: Mapping[str, AttributeValue]) -> str | None:
    """MLflow's span type, or None where nothing is known and MLflow's UNKNOWN is right.

    A model call counts as CHAT_MODEL only where it says it was a chat: a rollout's model calls mostly are
    token ids in, token ids out, which MLflow's chat view cannot show.
    """
    kind = attributes.get(semconv.SPAN_KIND)
    operation = attributes.get(semconv.GEN_AI_OPERATION_NAME)
    by_kind = _SPAN_TYPE_OF_KIND.get(str(kind).upper())
    by_operation = _SPAN_TYPE_OF_OPERATION.get(str(operation))
    if by_kind == "LLM" and by_operation == "CHAT_MODEL":
        return by_operation
    return by_kind or by_operation


def trace_tags(attributes: Mapping[str, AttributeValue]) -> dict[str, str]:
    """A root span's identity, scores and other ``rollout.*`` attributes as trace tags.

    Values are ``str(value)`` as verl writes them: ``tags.step = '1'``, ``tags.validate = 'False'``. On equal
    names the identity wins over the rest, and an attribute over a score.
    """
    return {name: text for name, text in _wanted_tags(attributes).items() if problem_of_tag(name) is None}


def refused_tags(attributes: Mapping[str, AttributeValue]) -> dict[str, str]:
    """Name → why MLflow takes no such tag, of what would be a root span's tags."""
    found = ((name, problem_of_tag(name)) for name in _wanted_tags(attributes))
    return {name: problem for name, problem in found if problem}


def problem_of_tag(name: str) -> str | None:
    """Why MLflow takes no tag of that name; None if it does. From it, it would drop the tag in silence."""
    if name.startswith(_BOOKKEEPING):
        return "names that begin with 'mlflow.' are MLflow's own"
    if len(name) > MAX_TAG_NAME_CHARS:
        return f"it has {len(name)} characters of at most {MAX_TAG_NAME_CHARS}"
    if not _TAG_NAME.fullmatch(name):
        return "it may hold letters, digits, spaces and _ - . : / only"
    if posixpath.normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        return "it may be no path such as /a, a/ or ../a"
    return None


def _wanted_tags(attributes: Mapping[str, AttributeValue]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for name, value in attributes.items():
        if name.startswith(semconv.SCORE_PREFIX):
            short = name.removeprefix(semconv.SCORE_PREFIX)
            if short not in _NOT_FOR_SCORES:
                tags.setdefault(short, tag_text(value))
        elif name.startswith(semconv.EXTRA_PREFIX) and not _is_for_others(name):
            tags[name.removeprefix(semconv.EXTRA_PREFIX)] = tag_text(value)
    for name in _IDENTITY_TAGS:
        if name in attributes:
            tags[name.removeprefix(semconv.EXTRA_PREFIX)] = tag_text(attributes[name])
    tags.pop("", None)
    return tags


def _is_for_others(name: str) -> bool:
    """Whether an attribute is no tag: the experiment says the project, Feedback the time of a score."""
    return name == semconv.PROJECT_NAME or name.startswith(semconv.SCORE_TIME_PREFIX)


def session_of(attributes: Mapping[str, AttributeValue]) -> str | None:
    """All trajectories of one training step as one MLflow session; validation is a session of its own.

    The step comes first: MLflow's list of traces shows the beginning only.
    """
    parts = []
    if semconv.STEP in attributes:
        validation = " (validation)" if attributes.get(semconv.VALIDATE) is True else ""
        parts.append(f"step {attributes[semconv.STEP]!s}{validation}")
    if semconv.EXPERIMENT_NAME in attributes:
        parts.append(str(attributes[semconv.EXPERIMENT_NAME]))
    return " - ".join(parts) or None


def feedback_of(span: ReadableSpan) -> list[Feedback]:
    """The scores a span carries: a root's ``rollout.score.*``, or the verdict of an evaluation span."""
    if not is_root(span) and semconv.GEN_AI_EVALUATION_NAME not in (span.attributes or {}):
        return []
    span = encodable(span)
    attributes = span.attributes or {}
    own_id = f"{_context(span).span_id:016x}"
    scored: list[Feedback] = []
    if is_root(span):
        for repeated in evaluations.repeated_in(attributes, span.end_time or 0):
            scored.append(_feedback(span, own_id, repeated, tagged=True))
    recorded = evaluations.recorded_in(attributes, span.start_time or 0)
    if recorded is not None:
        # An evaluation is a child of what it evaluates, so a late reward lands on the same Feedback as the
        # `rollout.score.*` of its root.
        scored_id = f"{span.parent.span_id:016x}" if span.parent else own_id
        scored.append(_feedback(span, scored_id, recorded, tagged=recorded.origin is not None))
    return [score for score in scored if len(score.name) <= MAX_FEEDBACK_NAME_CHARS]


def _feedback(span: ReadableSpan, scored_id: str, score: Evaluation, *, tagged: bool) -> Feedback:
    return Feedback(
        trace_id=trace_id_of(span),
        span_id=scored_id,
        name=score.name,
        value=score.value,
        time_ns=score.time_ns,
        is_dated=score.is_dated,
        rationale=score.comment or None,
        tagged=tagged and score.name not in _NOT_FOR_SCORES and problem_of_tag(score.name) is None,
    )


def useful_resource(resource: Resource) -> Resource:
    """Only what is worth a trace tag: MLflow makes one of every resource attribute."""
    attributes = {key: resource.attributes[key] for key in RESOURCE_ATTRIBUTES if key in resource.attributes}
    if str(attributes.get(semconv.SERVICE_NAME, "")).startswith("unknown_service"):
        del attributes[semconv.SERVICE_NAME]
    return Resource(attributes)


def _payload(attributes: Mapping[str, AttributeValue], value: str, mime_type: str) -> AttributeValue | None:
    """Input or output in the form that MLflow reads back as the same value.

    MLflow decodes a string attribute once if it holds a JSON object, array or string, and keeps other
    strings as text. So JSON scalars go out as native values, and text that only looks like JSON goes out
    quoted. Where no mime type is given, MLflow's guess stands.
    """
    given = attributes.get(value)
    declared = attributes.get(mime_type)
    if not isinstance(given, str):
        return given
    looks_decodable = given.lstrip()[:1] in _DECODED_BY_MLFLOW
    if not isinstance(declared, str):
        return _returnable(given) if looks_decodable else given
    if not declared.startswith(semconv.JSON_MIME_TYPE):
        return json.dumps(given, ensure_ascii=False) if looks_decodable else given
    return _returnable(given) if looks_decodable else _json_scalar(given)


def _returnable(text: str) -> str:
    """JSON that MLflow can give back: of a trace with an integer beyond 64 bits it shows nobody anything."""
    # So many digits in a row have one at every such place: looking there is twenty times as quick.
    if not _DIGIT.search(text[_LONG_DIGITS - 1 :: _LONG_DIGITS]) or not _LONG_NUMBER.search(text):
        return text
    try:
        return json.dumps(json.loads(text, parse_int=_integer))
    except (ValueError, RecursionError):  # MLflow cannot decode it either, and leaves it as it is
        return text


def _integer(digits: str) -> int | str:
    value = int(digits)
    return value if -_MAX_OTLP_INT <= value < _MAX_OTLP_INT else digits


def _json_scalar(text: str) -> AttributeValue | None:
    try:
        value: AttributeValue | None = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, float):
        return value if math.isfinite(value) else text  # JSON has no NaN and no infinity
    if isinstance(value, int):
        return value if -_MAX_OTLP_INT <= value < _MAX_OTLP_INT else text
    return value


def tag_text(value: AttributeValue) -> str:
    """A value as a trace tag: as Python writes it, or as JSON, cut to what MLflow keeps."""
    text = str(value) if isinstance(value, (str, bool, int, float)) else json.dumps(value, default=str)
    return text[:MAX_TAG_CHARS]


def _set(attributes: dict[str, AttributeValue], key: str, value: AttributeValue | None) -> None:
    if value is not None:
        attributes[key] = value


def _context(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    if context is None:
        raise ValueError(f"span {span.name!r} has no context")
    return context
