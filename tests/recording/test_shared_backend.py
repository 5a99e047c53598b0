"""Where an application's exporters send to our own targets, spans of trajectories take the direct way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.recording.shared_backend import SharedBackend
from otel_rollout.settings import Settings
from tests.fake_server import serving
from tests.spool_reader import read_directory, tree

WEAVE = "https://trace.wandb.ai/agents/otel/v1/traces"
OTLP = "http://collector:4318/v1/traces"


def provider_with(*exporters: SpanExporter, batch: bool = False) -> TracerProvider:
    """Return an application's provider with these exporters."""
    provider = TracerProvider(shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor((BatchSpanProcessor if batch else SimpleSpanProcessor)(exporter))
    return provider


def weave(project_id: str, endpoint: str = WEAVE) -> OTLPSpanExporter:
    """Return an exporter as weave.init makes it."""
    return OTLPSpanExporter(endpoint=endpoint, headers={"project_id": project_id})


def settings(project: str = "project", target: dict[str, str] | None = None, **exporters: dict) -> Settings:
    """Return settings of a run."""
    return Settings(exporters=exporters, project_name=project, target_variables=target or {})


@pytest.mark.parametrize(
    ("configured", "project_id", "expected"),
    [
        (settings("math", weave={"entity": "team"}), "team/math", True),
        (settings(weave={"project": "team/math"}), "team/math", True),
        (settings(target={"WANDB_PROJECT": "team/math"}, weave={}), "team/math", True),
        (settings("ma/th", {"WANDB_ENTITY": "team"}, weave={}), "team/ma-th", True),
        (settings("other", weave={"entity": "team"}), "team/math", False),
        (settings("math", weave={"entity": "other"}), "team/math", False),
        (settings("math", weave={"entity": "team", "base_url": "https://own"}), "team/math", False),
        (settings("math", weave={"entity": "team", "trace_server_url": "https://own"}), "team/math", False),
        (settings("math", weave={"api_key": "k"}), "team/math", False),
        (settings("math", mlflow={}), "team/math", False),
    ],
)
def test_project_of_weave_init_is_compared(configured: Settings, project_id: str, expected: bool) -> None:
    """It is our target if server, entity and project are known, and the same."""
    assert SharedBackend(configured).is_all_of(provider_with(weave(project_id), batch=True)) is expected


@pytest.mark.parametrize(
    ("configured", "headers", "expected"),
    [
        (settings(otlp={"endpoint": OTLP}), {}, True),
        (settings(target={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, otlp={}), {}, True),
        (settings(otlp={}), {}, False),
        (settings(otlp={"endpoint": OTLP}), {"x-tenant": "other"}, False),
        (settings(otlp={"endpoint": OTLP, "headers": "x-tenant=ours"}), {"x-tenant": "ours"}, False),
        (settings(mlflow={}), {}, False),
    ],
)
def test_otlp_endpoint_is_compared(configured: Settings, headers: dict[str, str], expected: bool) -> None:
    """It is our target if address and headers are the same."""
    provider = provider_with(OTLPSpanExporter(endpoint=OTLP, headers=headers))
    assert SharedBackend(configured).is_all_of(provider) is expected


def test_headers_of_the_environment_are_those_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that takes its endpoint from the variables shares the target of `otlp`."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", OTLP)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ours")
    assert SharedBackend(settings(otlp={})).is_all_of(provider_with(OTLPSpanExporter()))


class Unknown(SpanProcessor):
    """A processor of the application's own, which may send spans anywhere."""


def test_any_other_exporter_keeps_our_spans() -> None:
    """An exporter or a processor of another kind may have a backend of its own."""
    shared = SharedBackend(settings(otlp={"endpoint": OTLP}))
    assert not shared.is_all_of(TracerProvider())
    assert not shared.is_all_of(provider_with(OTLPSpanExporter(endpoint=OTLP), InMemorySpanExporter()))
    provider = provider_with(OTLPSpanExporter(endpoint=OTLP))
    assert shared.is_all_of(provider)
    provider.add_span_processor(Unknown())
    assert not shared.is_all_of(provider)


def test_another_project_of_weave_init_is_noticed() -> None:
    """A second weave.init changes the headers of the exporter's session."""
    exporter = weave("team/math")
    provider = provider_with(exporter)
    session = getattr(getattr(exporter, "_client", exporter), "_transport", exporter)._session
    session.headers = {**session.headers, "project_id": "team/math"}
    shared = SharedBackend(settings("math", weave={"entity": "team"}))
    assert shared.is_all_of(provider)
    session.headers = {**session.headers, "project_id": "team/other"}
    assert not shared.is_all_of(provider)


@pytest.fixture
def unset_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the application set a provider, as in a new process."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())


def test_provider_set_within_a_trajectory_is_joined_at_once(
    unset_provider: None, recorded: Callable[[], list]
) -> None:
    """The application's spans of the running trajectory are recorded, and no later set is refused."""
    memory = InMemorySpanExporter()

    @rollout_trace_op(name="op")
    def op() -> None:
        trace.set_tracer_provider(provider_with(memory))
        with trace.get_tracer("app").start_as_current_span("app"):
            inner()

    @rollout_trace_op(name="inner")
    def inner() -> None: ...

    with rollout_trace_attr(step=1):
        op()
    assert tree(recorded()) == {"rollout_trace": [{"op": [{"app": ["inner"]}]}]}
    assert [span.name for span in memory.get_finished_spans()] == ["inner", "app"]


@pytest.mark.parametrize(("choice", "expected"), [("auto", 1), ("share", 3), ("apart", 1)])
def test_direct_spans_nest_with_those_of_the_application(
    choice: str,
    expected: int,
    unset_provider: None,
    test_exporters: None,
    fresh_process: None,
    tmp_path: Path,
) -> None:
    """An exporter to our own target gets the application's spans alone, unless the setting says otherwise."""
    with serving() as collector:
        endpoint = f"{collector.uri}/v1/traces"
        otel_rollout.configure({"otlp": {"endpoint": endpoint}}, application_provider=choice)
        provider = provider_with(OTLPSpanExporter(endpoint=endpoint))
        trace.set_tracer_provider(provider)
        ours = len(collector.requests("/v1/traces"))

        @rollout_trace_op(name="op")
        def op() -> None: ...

        with rollout_trace_attr(step=1), trace.get_tracer("app").start_as_current_span("app"):
            op()
        exported = [r for r in collector.requests("/v1/traces")[ours:] if _is_by_sdk(r.headers)]
        otel_rollout.shutdown(10)
    assert len(exported) == expected
    spans = read_directory(tmp_path / "spool")
    assert tree(spans) == {"rollout_trace": [{"app": ["op"]}]}
    assert {json.dumps(span.attributes["rollout.step"]) for span in spans} == {"1"}


def _is_by_sdk(headers: object) -> bool:
    return "OTel-OTLP-Exporter-Python" in str(headers)
