"""An application with an OpenTelemetry of its own: one tree, in its backend and in ours.

    pip install '.[mlflow-local]'    # in a checkout
    OTEL_TRACES_EXPORTER=mlflow MLFLOW_TRACKING_URI=sqlite:///mlflow.db python examples/own_opentelemetry.py

The application exports to the console here. Trajectories go through its provider, so its console shows them;
and the spans of its instrumentation inside a trajectory are in MLflow. What it does outside of trajectories
stays its own business.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base import semconv


def in_a_line(span: ReadableSpan) -> str:
    """What the application's console shows of a span."""
    context = span.get_span_context()
    return f"application's exporter: {span.name} in trace {context.trace_id if context else 0:032x}\n"


def set_up_the_application() -> None:
    """What the application does for itself, with or without otel-rollout."""
    provider = TracerProvider(resource=Resource.create({"service.name": "my-application"}))
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=in_a_line)))
    trace.set_tracer_provider(provider)


@rollout_trace_op(kind=semconv.KIND_TOOL)
def look_up(key: str) -> str:
    """A tool whose database client is instrumented."""
    with trace.get_tracer("database client").start_as_current_span("SELECT") as span:
        span.set_attribute("db.system.name", "sqlite")
        return key.upper()


def main() -> None:
    """Some of the application's work, and a trajectory."""
    set_up_the_application()
    with trace.get_tracer("my-application").start_as_current_span("start-up"):
        pass
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        look_up("answer")
    print(otel_rollout.shutdown().summary())


if __name__ == "__main__":
    main()
