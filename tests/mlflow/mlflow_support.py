"""Helpers of the tests in this folder. Not in conftest.py, whose module name every test folder shares."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.mlflow_server import stored as stored

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what MLflow's own imports warn about is not ours to fix
    import mlflow  # noqa: F401 - before anything else imports it

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_rollout_mlflow import MlflowSpanExporter


ADMIN, PASSWORD = "admin", "pa:ss, w@rd/%"
IN_A_FILE = PASSWORD.replace("%", "%%")
"""As Python's configparser reads it, and so MLflow."""


def deliver(exporter: MlflowSpanExporter, spans: list[ReadableSpan]) -> None:
    """Export and insist on success, showing the reason where there is none."""
    assert exporter.export(spans) is SpanExportResult.SUCCESS, exporter.last_failure


class Rollouts:
    """Builds trajectories with the real SDK. Spans come out in the order they ended: children first."""

    def __init__(self, project: str, resource: dict[str, str] | None = None) -> None:
        self.identity = {
            "rollout.project_name": project,
            "rollout.experiment_name": "grpo",
            "rollout.step": 1,
            "rollout.sample_index": 7,
            "rollout.rollout_n": 0,
            "rollout.validate": False,
        }
        self._memory = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource(resource or {}))
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self._tracer = provider.get_tracer("tests.mlflow")

    @contextmanager
    def span(
        self, name: str, kind: str | None = None, context: Context | None = None, **attributes: Any
    ) -> Iterator[Span]:
        """A span with the trajectory's identity; dots in attribute names are written as ``__``."""
        given = {key.replace("__", "."): value for key, value in attributes.items()}
        if kind:
            given["openinference.span.kind"] = kind
        with self._tracer.start_as_current_span(name, context, attributes={**self.identity, **given}) as span:
            yield span

    def begin(self, name: str, start_ns: int, context: Context | None = None, **attributes: Any) -> Span:
        """A span that began then, below ``context`` alone; whoever asks ends it."""
        given = {key.replace("__", "."): value for key, value in attributes.items()}
        return self._tracer.start_span(
            name, context or Context(), attributes={**self.identity, **given}, start_time=start_ns
        )

    @contextmanager
    def foreign_span(self, name: str) -> Iterator[Span]:
        """A span of other instrumentation: nothing of a rollout on it."""
        with self._tracer.start_as_current_span(name) as span:
            yield span

    def ended(self) -> list[ReadableSpan]:
        """The spans that ended since the last call."""
        spans = list(self._memory.get_finished_spans())
        self._memory.clear()
        return spans


@dataclass
class FakeServer:
    """A tiny HTTP server that answers as told: only for answers a real server gives rarely."""

    uri: str = ""
    version: str = "3.17.2"
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    received: list[tuple[str, dict[str, str]]] = field(default_factory=list)


@dataclass(frozen=True)
class SecuredServer:
    """A server with MLflow's own authentication behind TLS.

    Attributes:
        uri: its address, by the one name its certificate was issued for.
        ca: the file of the authority that signed it.
        other_ca: that of another.
    """

    uri: str
    ca: str
    other_ca: str
