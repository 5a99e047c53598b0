"""Summarize a trajectory: identity, state, scores, duration and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.call_tokens import CallTokens
from otel_rollout.otlp.evaluations import Evaluation

VALIDATION: Final = "validation"
_PATH: Final = (semconv.STEP, semconv.SAMPLE_INDEX, semconv.ROLLOUT_N)
_IDENTITY: Final = (*_PATH, semconv.VALIDATE)
_COUNTS: Final = (
    semconv.GEN_AI_USAGE_INPUT_TOKENS,
    semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
)
"""Attributes of the counts of :class:`Tokens`, in its order."""
_NO_FACTS: Final = (
    *semconv.IDENTITY,
    semconv.SCORE_ORIGIN,
    semconv.TOKENIZER,
    semconv.TEXT_OF,
    semconv.TURN_CONTINUES,
    semconv.TURN_SHARED,
    semconv.TURN_LENGTH,
    *semconv.PREFIX_BREAK,
)
"""Attributes of a root span that are not shown as facts: identity, and attributes from the forwarder."""


@dataclass(frozen=True)
class Score:
    """A trajectory's newest score of a name."""

    name: str
    value: float | bool | str
    comment: str = ""


@dataclass(frozen=True)
class Tokens:
    """Token counts of one or several model calls; None if not recorded."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None

    @classmethod
    def total(cls, parts: Iterable[Tokens]) -> Tokens:
        """Add up the counts that are known."""
        known = list(parts)
        return cls(
            _sum(part.input for part in known),
            _sum(part.output for part in known),
            _sum(part.cached for part in known),
        )


@dataclass(frozen=True)
class Summary:
    """A trajectory in one row.

    Attributes:
        trace_id: trace id, 32 hex digits.
        run: id of the run that recorded the trajectory.
        project: name of the project.
        experiment: name of the training run.
        path: step, sample and rollout, separated by slashes, after ``validation/`` in a validation. Empty for
            a trace that is no trajectory.
        name: name of the root span.
        state: ``ok``, ``error``, or ``running`` while no root span has ended.
        error: error of the root span.
        start_ns: start in nanoseconds of Unix time.
        seconds: duration; None while the trajectory runs.
        scores: the newest score of each name.
        tokens: token counts of all model calls.
        facts: further attributes of the root span, by their short names.
    """

    trace_id: str
    run: str = ""
    project: str = ""
    experiment: str = ""
    path: str = ""
    name: str = ""
    state: str = "running"
    error: str = ""
    start_ns: int = 0
    seconds: float | None = None
    scores: tuple[Score, ...] = ()
    tokens: Tokens = Tokens()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: training before validation, then path, with numbers by value."""
        parts = self.path.split("/")
        return (
            len(parts),
            [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts],
            self.start_ns,
        )


def path_of(identity: Mapping[str, Any]) -> str:
    """Return step, sample and rollout as a path; empty without any of them."""
    if not any(name in identity for name in _IDENTITY):
        return ""
    parts = [str(identity.get(name, "-")) for name in _PATH]
    is_validation = identity.get(semconv.VALIDATE) in (True, "True")
    return "/".join([VALIDATION, *parts] if is_validation else parts)


def start_time(summary: Summary) -> str:
    """Format a trajectory's start in UTC; return empty text if it is unknown."""
    if not summary.start_ns:
        return ""
    return datetime.fromtimestamp(summary.start_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def score_of(span: ReadableSpan) -> Evaluation | None:
    """Return the score that an evaluation span records; None for any other span."""
    return evaluations.recorded_in(span.attributes or {}, span.start_time or 0)


def tokens_of(span: ReadableSpan) -> Tokens | None:
    """Return the token counts of a model call's span; None without any."""
    found = [(span.attributes or {}).get(name) for name in _COUNTS]
    numbers = [number if isinstance(number, int) else None for number in found]
    return None if numbers == [None, None, None] else Tokens(*numbers)


class Gathering:
    """Summarize a trace from its spans in any order, without keeping the spans.

    Args:
        trace_id: trace id, 32 hex digits.
        root_id: id of the trajectory's first span; by default the trace's root.
    """

    def __init__(self, trace_id: str, root_id: int | None = None) -> None:
        self._trace_id = trace_id
        self._root_id = root_id
        self._seen: dict[int, _Seen] = {}
        self._roots: dict[int, ReadableSpan] = {}
        self._run = ""
        self._tokens: CallTokens[int] = CallTokens()

    def add(self, span: ReadableSpan) -> None:
        """Add a span; of one that was added before, the later end counts, as in ``spans.sql``."""
        context, attributes = span.context, span.attributes or {}
        known = self._seen.get(context.span_id) if context else None
        if context is None or (known and known.end_ns >= (span.end_time or 0)):
            return
        self._run = self._run or str(span.resource.attributes.get(semconv.RUN_ID, ""))
        self._seen[context.span_id] = _Seen(
            span.parent.span_id if span.parent else None,
            span.start_time or 0,
            span.end_time or 0,
            {name: attributes[name] for name in semconv.IDENTITY if name in attributes},
            str(attributes.get(semconv.SPAN_KIND, "")),
            score_of(span),
        )
        is_call = attributes.get(semconv.SPAN_KIND) == semconv.KIND_LLM
        counts = (
            {name: n for name in _COUNTS if isinstance(n := attributes.get(name), int)} if is_call else None
        )
        self._tokens.add(context.span_id, span.parent.span_id if span.parent else None, counts)
        if span.parent is None or span.parent.is_remote or semconv.VALIDATE in attributes:
            is_agent = attributes.get(semconv.SPAN_KIND) == semconv.KIND_AGENT
            if score_of(span) is None and (is_agent or span.parent is None or span.parent.is_remote):
                self._roots[context.span_id] = _without_content(span)

    @property
    def root_id(self) -> int | None:
        """Id of the trajectory's first span; None until that span is added."""
        if self._root_id is not None:
            return self._root_id if self._root_id in self._roots else None
        parentless = [id_ for id_ in self._roots if self._seen[id_].parent_id is None]
        if parentless:
            return min(parentless, key=lambda id_: self._seen[id_].start_ns)
        return self._root_with_a_parent()

    def _root_with_a_parent(self) -> int | None:
        """Return the root of a trace that begins in another system; see ``roots.sql``."""
        named = {id_: seen for id_, seen in self._seen.items() if semconv.VALIDATE in seen.identity}
        candidates = named or {id_: self._seen[id_] for id_ in self._roots}
        first = min(
            candidates,
            key=lambda id_: (candidates[id_].start_ns, candidates[id_].kind != semconv.KIND_AGENT, id_),
            default=None,
        )
        if first is None or first not in self._roots:
            return None
        above = self._seen[first].parent_id
        siblings = (seen for seen in named.values() if seen.parent_id == above)
        is_part = any(sibling.kind != semconv.KIND_AGENT for sibling in siblings)
        return None if is_part or self._roots[first].end_time is None else first

    def summary(self) -> Summary:
        """Return the summary of the spans added so far."""
        root = self._roots.get(self.root_id or 0)
        seen = sorted(self._seen.values(), key=lambda span: span.start_ns)
        identified = [span.identity for span in seen if semconv.VALIDATE in span.identity]
        merged = {key: value for span in reversed(seen) for key, value in span.identity.items()}
        identity: Mapping[str, Any] = (root.attributes if root else None) or next(iter(identified), merged)
        known = Summary(
            self._trace_id,
            run=self._run,
            project=str(identity.get(semconv.PROJECT_NAME, "")),
            experiment=str(identity.get(semconv.EXPERIMENT_NAME, "")),
            path=path_of(identity),
            start_ns=min((span.start_ns for span in seen), default=0),
            scores=self._scores(root, identity),
            tokens=Tokens(*self._tokens.total(*_COUNTS)),
        )
        if root is None:
            return known
        start_ns = root.start_time or 0
        known = replace(known, name=root.name, start_ns=start_ns, facts=_facts(identity))
        if root.end_time is None:
            return known
        failed = root.status.status_code is StatusCode.ERROR
        return replace(
            known,
            state="error" if failed else "ok",
            error=(root.status.description or "") if failed else "",
            seconds=(root.end_time - start_ns) / 1e9,
        )

    def _scores(self, root: ReadableSpan | None, identity: Mapping[str, Any]) -> tuple[Score, ...]:
        given = evaluations.repeated_in(root.attributes or {}, root.end_time or 0) if root else []
        given += [span.score for span in self._seen.values() if span.score and self._is_own(span, identity)]
        # Root and evaluation span may hold one score. The evaluation span, which has the comment, comes last
        # and wins.
        found = sorted(evaluations.newest(given).values(), key=lambda score: score.time_ns)
        return tuple(Score(score.name, score.value, score.comment) for score in found)

    def _is_own(self, span: _Seen, identity: Mapping[str, Any]) -> bool:
        """Return whether a score is the trajectory's, and not a sub-trajectory's."""
        scored = self._seen.get(span.parent_id or 0, span)
        known = scored.identity if semconv.VALIDATE in scored.identity else span.identity
        return semconv.VALIDATE not in known or path_of(known) == path_of(identity)


@dataclass(frozen=True)
class _Seen:
    """The parts of a span that a summary needs."""

    parent_id: int | None
    start_ns: int
    end_ns: int
    identity: Mapping[str, Any]
    kind: str
    score: Evaluation | None


def _without_content(span: ReadableSpan) -> ReadableSpan:
    content = (semconv.INPUT_VALUE, semconv.OUTPUT_VALUE)
    attributes = {name: value for name, value in (span.attributes or {}).items() if name not in content}
    return ReadableSpan(
        span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,  # the default starts threads to detect the resource
        attributes=attributes,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
    )


def _facts(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        semconv.short_name(name): value
        for name, value in attributes.items()
        if name.startswith(semconv.EXTRA_PREFIX)
        and not name.startswith((semconv.SCORE_PREFIX, semconv.SCORE_TIME_PREFIX))
        and name not in _NO_FACTS
    }


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def gathered(spans: Sequence[ReadableSpan], root_id: int | None = None) -> Gathering:
    """Gather all spans of a trace."""
    first = spans[0].context
    gathering = Gathering(f"{first.trace_id if first else 0:032x}", root_id)
    for span in spans:
        gathering.add(span)
    return gathering
