"""Record trajectories in an application that has its own OpenTelemetry SDK.

    pip install '.[mlflow-local]'    # in a checkout
    OTEL_TRACES_EXPORTER=mlflow MLFLOW_TRACKING_URI=sqlite:///mlflow.db python examples/own_opentelemetry.py

Console and MLflow get one tree of spans. The application exports to the console. Trajectories go through the
application's provider, so the console shows them. MLflow also gets the spans of the application's
instrumentation inside a trajectory, but no spans outside of trajectories.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base import semconv


def one_line(span: ReadableSpan) -> str:
    """Format a span for the application's console."""
    context = span.get_span_context()
    return f"application's exporter: {span.name} in trace {context.trace_id if context else 0:032x}\n"


def set_up_the_application() -> None:
    """Set OpenTelemetry up, as the application does with or without otel-rollout."""
    provider = TracerProvider(resource=Resource.create({"service.name": "my-application"}))
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=one_line)))
    trace.set_tracer_provider(provider)


@rollout_trace_op(kind=semconv.KIND_TOOL)
def look_up(key: str) -> str:
    """Look a key up: a tool whose database client is instrumented."""
    with trace.get_tracer("database client").start_as_current_span("SELECT") as span:
        span.set_attribute("db.system.name", "sqlite")
        return key.upper()


def main() -> None:
    """Do some of the application's work, and run a trajectory."""
    set_up_the_application()
    with trace.get_tracer("my-application").start_as_current_span("start-up"):
        pass
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        look_up("answer")
    print(otel_rollout.shutdown().summary())


if __name__ == "__main__":
    main()
