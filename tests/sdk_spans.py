"""Build spans of trajectories with OpenTelemetry's SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_rollout.otlp import json_line, sdk, span

JSON = {"input__mime_type": "application/json", "output__mime_type": "application/json"}
"""Attributes of a span whose input and output are JSON, as arguments of ``Rollouts.span``."""
ROLLOUT_RUN = "rollout-run-1"
"""The id of a rollout run, for tests that need one."""


def deliver(exporter: SpanExporter, spans: list[ReadableSpan]) -> None:
    """Export spans, and fail with the exporter's reason if it fails."""
    assert exporter.export(spans) is SpanExportResult.SUCCESS, getattr(exporter, "last_failure", None)


class Rollouts:
    """Builds trajectories with the SDK.

    Spans come out in the order in which they ended: children first.
    """

    def __init__(self, project: str, resource: Mapping[str, str] | None = None) -> None:
        self.identity: dict[str, Any] = {
            "rollout.project_name": project,
            "rollout.experiment_name": "grpo",
            "rollout.step": 1,
            "rollout.sample_index": 7,
            "rollout.rollout_n": 0,
            "rollout.validate": False,
        }
        self._memory = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource(dict(resource or {})))
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self._tracer = provider.get_tracer("tests")

    @contextmanager
    def span(
        self, name: str, kind: str | None = None, context: Context | None = None, **attributes: Any
    ) -> Iterator[Span]:
        """Make a span with the trajectory's identity.

        ``__`` in attribute names stands for a dot.
        """
        given = {key.replace("__", "."): value for key, value in attributes.items()}
        if kind:
            given["openinference.span.kind"] = kind
        with self._tracer.start_as_current_span(name, context, attributes={**self.identity, **given}) as span:
            yield span

    def begin(self, name: str, start_ns: int, context: Context | None = None, **attributes: Any) -> Span:
        """Start a span at a time, below ``context`` alone; the caller ends it."""
        given = {key.replace("__", "."): value for key, value in attributes.items()}
        return self._tracer.start_span(
            name, context or Context(), attributes={**self.identity, **given}, start_time=start_ns
        )

    @contextmanager
    def foreign_span(self, name: str, **attributes: Any) -> Iterator[Span]:
        """Make a span of other instrumentation, without anything of a rollout."""
        with self._tracer.start_as_current_span(name, attributes=attributes) as span:
            yield span

    def trajectory(self, name: str = "Agent.run", reward: float | None = 0.5) -> None:
        """Make an agent with a model call and a tool call below it, and a score."""
        with self.span(
            name, "AGENT", input__value='{"question": "3+4?"}', output__value='{"answer": "7"}', **JSON
        ) as root:
            with self.span(
                "generate",
                "LLM",
                input__value='{"ids": [1, 2, 3]}',
                output__value='{"text": "calc(3+4)"}',
                gen_ai__request__model="qwen",
                gen_ai__usage__input_tokens=3,
                gen_ai__usage__output_tokens=5,
                **JSON,
            ):
                pass
            with self.span(
                "calculator", "TOOL", input__value='{"expression": "3+4"}', output__value="7", **JSON
            ):
                pass
            if reward is not None:
                root.set_attribute("rollout.score.reward", reward)

    def evaluation(self, name: str, value: float, why: str = "") -> None:
        """Make a score as ``otel_rollout.score`` records it."""
        given = {"gen_ai__evaluation__name": name, "gen_ai__evaluation__score__value": value}
        with self.span(
            f"score {name}", "EVALUATOR", **given, gen_ai__evaluation__explanation=why, rollout__step=1
        ):
            pass

    def ended(self) -> list[ReadableSpan]:
        """Return the spans that ended since the last call."""
        spans = list(self._memory.get_finished_spans())
        self._memory.clear()
        return spans


def spans_of(line: bytes) -> list[ReadableSpan]:
    """Decode a recorded line to the spans that exporters of others get."""
    return [sdk.readable(span) for span in json_line.spans_of(line)]


def decoded(given: ReadableSpan | span.Span) -> span.Span:
    """Return a span as our exporters get it."""
    return sdk.spans_of([given])[0]
