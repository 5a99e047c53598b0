"""Record a few trajectories under a MeterProvider, and print what it has collected as JSON."""

import contextlib
import json
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score

IDENTITY = ("rollout.project_name", "rollout.experiment_name")


@rollout_trace_op(kind="LLM", name="engine")
def engine(reason: str) -> dict[str, Any]:
    """Answer as OpenAI does."""
    return {
        "model": "policy",
        "choices": [{"finish_reason": reason, "message": {"role": "assistant", "content": "4"}}],
        "usage": {"prompt_tokens": 10},
    }


@rollout_trace_op(kind="LLM", name="client")
def client(reason: str) -> dict[str, Any]:
    """Call the engine: both spans are one model call, and each has a count that the other lacks."""
    own: dict[str, str | int] = {"gen_ai.usage.output_tokens": 3, "gen_ai.response.model": "policy"}
    trace.get_current_span().set_attributes(own)
    return engine(reason)


@rollout_trace_op(kind="TOOL")
def call_tool(name: str, arguments: dict[str, int]) -> float:
    """Divide; the tool is named by an argument."""
    return arguments["a"] / arguments["b"]


def library_tool(index: int) -> None:
    """Fail once in another library's span, which names the error in its event alone."""
    named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "lookup"}
    with trace.get_tracer("library").start_as_current_span("execute_tool lookup", attributes=named):
        if index == 2:
            raise KeyError("wool")


def library_call() -> None:
    """Ask a model in a span of OpenInference's instrumentor, which has names of its own for all facts."""
    texts = {"openinference.span.kind": "LLM", "llm.model_name": "theirs", "llm.finish_reason": "length"}
    named: dict[str, str | int] = {**texts, "llm.token_count.prompt": 7}
    with trace.get_tracer("library").start_as_current_span("ChatCompletion", attributes=named):
        pass


def some_tool() -> None:
    """Do nothing."""


def collected(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Return name and attributes → count, and sum if it is no duration, of each of our own metrics."""
    data = reader.get_metrics_data()
    found: dict[str, Any] = {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name.startswith("otel_rollout."):
                    continue
                for point in metric.data.data_points:
                    labels = dict(point.attributes or {})
                    assert [labels.pop(name) for name in IDENTITY] == ["otel-rollout", "experiment"]
                    key = " ".join([metric.name, *(f"{n}={v}" for n, v in sorted(labels.items()))])
                    if isinstance(point, NumberDataPoint):
                        found[key] = point.value
                        continue
                    assert isinstance(point, HistogramDataPoint)
                    if metric.unit == "s":
                        assert 0 <= point.sum < 60
                        found[key] = point.count
                    else:
                        found[key] = [point.count, point.sum]
    return found


def rollout(index: int) -> None:
    """Record a trajectory of two turns; the third one fails."""
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=index, validate=index == 1):
        client("stop")
        with contextlib.suppress(ZeroDivisionError):
            call_tool("calculator", {"a": 1, "b": index})
        with contextlib.suppress(KeyError):
            library_tool(index)
        client("length" if index == 0 else "stop")
        score("reward", -0.5 if index == 0 else 1.0)
        score("other", 7.0)
        if index == 1:
            score("reward", 1e200)  # as in the table, no sum has it
        if index == 2:
            raise LookupError("no such task")


def main() -> None:
    """Record two runs, and print what was measured at the end of each."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    otel_rollout.instrument()
    for index in range(3):
        with contextlib.suppress(LookupError):
            rollout(index)
    otel_rollout.shutdown()
    print(json.dumps(collected(reader)))
    otel_rollout.configure("spool", experiment_name="experiment")  # a second run
    with rollout_trace_attr(step=1):  # names without a limit, as a program may make them up
        for number in range(100):
            rollout_trace_op(kind="TOOL", name=f"tool {number}")(some_tool)()
        library_call()
    otel_rollout.shutdown()
    found = collected(reader)
    tools = [key for key in found if key.startswith("rollout.tool.duration")]
    print(json.dumps([len(tools), any("gen_ai.tool.name=_OTHER" in key for key in tools)]))
    print(json.dumps({key: value for key, value in found.items() if "theirs" in key}))


if __name__ == "__main__":
    main()
