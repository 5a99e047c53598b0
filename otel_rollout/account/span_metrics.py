"""Measure recorded spans for the MeterProvider that the application has set.

The flusher's thread passes on the lines that it has written. So user code pays nothing, and a metric counts
what the spool has, after redaction. Each process measures the spans that it records.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

import orjson
from opentelemetry import metrics

from otel_rollout.base import semconv
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.version import VERSION
from otel_rollout.otlp import model_calls
from otel_rollout.otlp.evaluations import ODD
from otel_rollout.otlp.json_line import spans_of_json
from otel_rollout.otlp.span import UNREADABLE, Span
from otel_rollout.turns import foreign_spans

REWARD: Final = "reward"
"""Name of the score that is the trajectory's reward."""
OTHER: Final = "_OTHER"
"""OpenTelemetry's text for a value that is not counted apart, or an error of unknown type."""
_MAX_NAMES: Final = 64
"""Maximum different values of one attribute in a process's metrics; further values count as OTHER."""
_MAX_PARENTS: Final = 1 << 16
"""Maximum running spans whose ended model calls are remembered."""
_IDENTITY: Final = (semconv.PROJECT_NAME, semconv.EXPERIMENT_NAME, semconv.VALIDATE)
"""The parts of a trajectory's identity that each metric has. Each step or row would add a time series."""
_CALL_NAMES: Final = (
    semconv.GEN_AI_PROVIDER_NAME,
    semconv.GEN_AI_REQUEST_MODEL,
    semconv.GEN_AI_RESPONSE_MODEL,
)
_CHAT: Final = "chat"
_TOKEN_TYPES: Final = {
    "input": semconv.GEN_AI_USAGE_INPUT_TOKENS,
    "output": semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
}
_CALL_SECONDS: Final = tuple(0.01 * 2**power for power in range(14))
_TOKENS: Final = tuple(4**power for power in range(14))
"""Bucket bounds of OpenTelemetry's convention, as are those of ``_CALL_SECONDS``."""
_TOOL_SECONDS: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TRAJECTORY_SECONDS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
_TURNS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)

Labels = dict[str, str | bool | int | float]


class _CallsBelow(NamedTuple):
    """What is known of a running span: the ended model calls below it, and the names of their counts."""

    turns: int = 0
    counts: frozenset[str] = frozenset()


class _Instruments:
    """The instruments, of the application's MeterProvider or of the one that it sets later."""

    def __init__(self) -> None:
        meter = metrics.get_meter(semconv.SCOPE, VERSION)

        def histogram(name: str, unit: str, described: str, bounds: tuple[float, ...]) -> metrics.Histogram:
            return meter.create_histogram(name, unit, described, explicit_bucket_boundaries_advisory=bounds)

        self.call_seconds = histogram(
            "gen_ai.client.operation.duration", "s", "Duration of model calls", _CALL_SECONDS
        )
        self.tokens = histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens that a model call reads and writes", _TOKENS
        )
        self.tool_seconds = histogram("rollout.tool.duration", "s", "Duration of tool calls", _TOOL_SECONDS)
        self.trajectory_seconds = histogram(
            "rollout.trajectory.duration", "s", "Duration of trajectories", _TRAJECTORY_SECONDS
        )
        self.turns = histogram(
            "rollout.trajectory.turns", "{turn}", "Model calls of a trajectory in its process", _TURNS
        )
        self.cut_replies = meter.create_counter(
            "rollout.reply.truncated", "{reply}", "Replies that were cut by length"
        )
        self.rewards = meter.create_counter("rollout.reward.count", "{score}", "Rewards that were given")
        self.reward_sum = meter.create_up_down_counter(
            "rollout.reward.sum", "1", "Sum of the rewards that were given"
        )


class SpanMetrics:
    """Measures the spans of lines. Not thread-safe: the flusher's thread uses it."""

    def __init__(self) -> None:
        self._partial_line = b""
        self._below: BoundedDict[str, _CallsBelow] = BoundedDict(_MAX_PARENTS)
        self._names: dict[str, set[str]] = {}

    @internal_errors("measuring spans")
    def observe(self, chunk: bytes) -> None:
        """Measure the lines that end in a part of a segment. Never raises: the flusher must go on."""
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        for line in lines:
            self._measure_line(line)

    @cached_property
    def _instruments(self) -> _Instruments:
        """The instruments, made in the flusher's thread: a provider may take locks."""
        return _Instruments()

    def _measure_line(self, line: bytes) -> None:
        try:
            if foreign_spans.may_be_filled(line):
                spans = foreign_spans.filled(line).spans
            else:
                spans = list(spans_of_json(orjson.loads(line)))
        except UNREADABLE:  # cut when the spool's files were removed
            return
        for span in spans:
            self._measure(span)

    def _measure(self, span: Span) -> None:
        attributes = span.scalars()
        below = self._below.pop(span.span_id, _CallsBelow())
        labels: Labels = {name: attributes[name] for name in _IDENTITY if attributes.get(name) is not None}
        kind = model_calls.kind_of(attributes)
        if kind == semconv.KIND_LLM:
            below = self._measure_call(span, attributes, labels, below)
        elif kind == semconv.KIND_TOOL:
            self._measure_tool(span, attributes, labels)
        elif kind == semconv.KIND_AGENT and not span.parent_id and semconv.is_of_trajectory(attributes):
            labels |= self._error(span, attributes)
            self._instruments.trajectory_seconds.record(span.seconds, labels)
            self._instruments.turns.record(below.turns, labels)
        elif attributes.get(semconv.GEN_AI_EVALUATION_NAME) == REWARD:
            self._count_reward(attributes.get(semconv.GEN_AI_EVALUATION_SCORE_VALUE), labels)
        if below.turns and span.parent_id:
            known = self._below.get(span.parent_id, _CallsBelow())
            self._below[span.parent_id] = _CallsBelow(known.turns + below.turns, known.counts | below.counts)

    def _measure_call(
        self, span: Span, attributes: Mapping[str, Any], labels: Labels, below: _CallsBelow
    ) -> _CallsBelow:
        """Measure a model call, except what a call inside it has measured; return it for its parent."""
        labels[semconv.GEN_AI_OPERATION_NAME] = self._bounded(
            attributes, semconv.GEN_AI_OPERATION_NAME, _CHAT
        )
        labels |= {name: self._bounded(attributes, name) for name in _CALL_NAMES if attributes.get(name)}
        counts = model_calls.counts_of(attributes)
        for type_, name in _TOKEN_TYPES.items():
            if name in counts.keys() - below.counts:
                self._instruments.tokens.record(counts[name], labels | {semconv.GEN_AI_TOKEN_TYPE: type_})
        if not below.turns:
            self._instruments.call_seconds.record(span.seconds, labels | self._error(span, attributes))
            stated = span.attributes.get(semconv.GEN_AI_RESPONSE_FINISH_REASONS, ())
            reasons = stated if isinstance(stated, list) else [stated]
            if any(str(reason).lower() in model_calls.CUT_BY_LENGTH for reason in reasons):
                self._instruments.cut_replies.add(1, labels)
        return _CallsBelow(1, below.counts | counts.keys())

    def _measure_tool(self, span: Span, attributes: Mapping[str, Any], labels: Labels) -> None:
        name = model_calls.called_tool(attributes, span.name)
        labels[semconv.GEN_AI_TOOL_NAME] = self._bounded({}, semconv.GEN_AI_TOOL_NAME, name)
        self._instruments.tool_seconds.record(span.seconds, labels | self._error(span, attributes))

    def _count_reward(self, value: Any, labels: Labels) -> None:
        if isinstance(value, (int, float)) and abs(value) < ODD:  # no sum has NaN or infinity in it
            self._instruments.rewards.add(1, labels)
            self._instruments.reward_sum.add(float(value), labels)

    def _error(self, span: Span, attributes: Mapping[str, Any]) -> Labels:
        """Return the label that a failed span has."""
        if not span.has_failed:
            return {}
        raised = span.raised.get(semconv.EXCEPTION_TYPE, OTHER)
        return {semconv.ERROR_TYPE: self._bounded(attributes, semconv.ERROR_TYPE, raised)}

    def _bounded(self, attributes: Mapping[str, Any], name: str, default: str = OTHER) -> str:
        """Return an attribute's text, or OTHER after _MAX_NAMES different texts."""
        text = str(attributes.get(name) or default)
        known = self._names.setdefault(name, set())
        if len(known) < _MAX_NAMES:
            known.add(text)
        return text if text in known else OTHER
