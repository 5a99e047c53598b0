"""Measure what one traced operation with about 2 KB in and out costs its caller.

Contestants take turns in a new order each round, so that a slow moment of the machine affects all of them.
Every contestant runs as its users run it; ours writes its durable line.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import otel_rollout
from benchmarks.tracers import PAYLOAD, RESULT
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.recording.state import state

IDENTITY: dict[str, str | int | bool] = {
    "rollout.project_name": "bench",
    "rollout.experiment_name": "bench",
    "rollout.step": 1,
    "rollout.sample_index": 3,
    "rollout.rollout_n": 0,
    "rollout.validate": False,
}
Operation = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def operation(payload: dict[str, Any]) -> dict[str, Any]:
    """Do nothing, so that only tracing is measured."""
    return RESULT


class Contestant:
    """One way to trace an operation.

    Args:
        name: printed name.
        traced: the traced operation.
        around: context manager around each round, for example a root span.
        calls: operations per round.
    """

    def __init__(self, name: str, traced: Operation, around: Callable[[], Any], calls: int = 1000) -> None:
        self.name = name
        self.traced = traced
        self.around = around
        self.calls = calls
        self.cpu: list[float] = []
        self.process: list[float] = []
        self.wall: list[float] = []
        self.contended: list[float] = []

    async def round(self) -> None:
        """Measure one round in a hot loop: CPU of thread and process, wall; µs per call."""
        with self.around():
            cpu, process, wall = time.thread_time_ns(), time.process_time_ns(), time.perf_counter_ns()
            for _ in range(self.calls):
                await self.traced(PAYLOAD)
            self.cpu.append((time.thread_time_ns() - cpu) / self.calls / 1000)
            self.process.append((time.process_time_ns() - process) / self.calls / 1000)
            self.wall.append((time.perf_counter_ns() - wall) / self.calls / 1000)

    def forget(self) -> None:
        """Discard the measurements so far."""
        for samples in (self.cpu, self.process, self.wall):
            samples.clear()

    async def contended_round(self) -> None:
        """Measure single calls while another thread computes; wall time in µs."""
        with self.around():
            for _ in range(self.calls // 2):
                wall = time.perf_counter_ns()
                await self.traced(PAYLOAD)
                self.contended.append((time.perf_counter_ns() - wall) / 1000)

    def result(self, plain: Contestant, sdk: Contestant) -> dict[str, Any]:
        """Return medians and quartiles over the plain call, and the SDK span's share."""
        over = [cost - median(plain.cpu) for cost in self.cpu]
        sdk_over = median(sdk.cpu) - median(plain.cpu)
        low, _, high = quantiles(over, n=4)
        contended = quantiles(self.contended, n=100)
        return {
            "cpu_us": round(median(over), 2),
            "cpu_us_best": round(min(over), 2),
            "cpu_us_quartiles": [round(low, 2), round(high, 2)],
            "process_cpu_us": round(median(self.process) - median(plain.process), 2),
            "wall_us": round(median(self.wall) - median(plain.wall), 2),
            "beside_busy_thread_wall_us_p50": round(contended[49], 2),
            "beside_busy_thread_wall_us_p99": round(contended[98], 2),
            "share_of_sdk_span": round(median(over) / sdk_over, 3),
            "samples_cpu_us": [round(cost, 3) for cost in self.cpu],
        }


def contestants(stack: ExitStack) -> list[Contestant]:
    """Create the contestants.

    The plain call, ours off, not recorded and on, a bare SDK span, and MLflow's span.
    """
    ours = rollout_trace_op(operation)
    return [
        Contestant("plain call", operation, _nothing, 20_000),
        Contestant("otel-rollout, off", ours, _switched_off, 20_000),
        Contestant("otel-rollout, trace=False", ours, _not_recorded, 5000),
        Contestant("otel-rollout", ours, _trajectory),
        Contestant("OTel SDK span, no content", *sdk_span(stack)),
        Contestant("mlflow.start_span", *_mlflow(stack), calls=100),
    ]


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _switched_off() -> Iterator[None]:
    """Set the state of a process without configuration."""
    state.off, before = True, state.off
    try:
        yield
    finally:
        state.off = before


def _not_recorded() -> Any:
    return rollout_trace_attr(trace=False)


def _trajectory() -> Any:
    return rollout_trace_attr(step=1, sample_index=3, rollout_n=0)


def _sdk_tracer(stack: ExitStack) -> Any:
    """Create an SDK tracer: BatchSpanProcessor, exporter that does nothing."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None: ...

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=1 << 17))
    stack.callback(provider.shutdown)
    return provider.get_tracer("bench")


def sdk_span(stack: ExitStack) -> tuple[Operation, Callable[[], Any]]:
    """Trace with an SDK span without content."""
    tracer = _sdk_tracer(stack)

    async def traced(payload: dict[str, Any]) -> dict[str, Any]:
        with tracer.start_as_current_span("operation", attributes=IDENTITY):
            return await operation(payload)

    return traced, lambda: tracer.start_as_current_span("root")


def _mlflow(stack: ExitStack) -> tuple[Operation, Callable[[], Any]]:
    """Trace by MLflow's fluent API into a SQLite database, as verl does."""
    import mlflow

    directory = stack.enter_context(tempfile.TemporaryDirectory())
    mlflow.set_tracking_uri(f"sqlite:///{directory}/mlflow.db")
    mlflow.set_experiment("bench")
    stack.callback(mlflow.flush_trace_async_logging)

    async def traced(payload: dict[str, Any]) -> dict[str, Any]:
        with mlflow.start_span("operation") as span:
            span.set_inputs(payload)
            result = await operation(payload)
            span.set_outputs(result)
            return result

    return traced, lambda: mlflow.start_span("root")


@contextmanager
def busy_thread() -> Iterator[None]:
    """Compute in another thread without pause, as other threads of a worker may."""
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def run(quick: bool) -> dict[str, Any]:
    """Measure everything; return a result per contestant."""
    rounds = 7 if quick else 25
    order = random.Random(0)
    with ExitStack() as stack:
        spool = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        # No target listens there: the forwarder waits and uses no CPU time of this machine.
        target = {"mlflow": {"tracking_uri": "http://127.0.0.1:9"}}
        otel_rollout.configure(target, project_name="bench", spool_dir=Path(spool))
        field = contestants(stack)
        for number in range(rounds + 1):
            for contestant in order.sample(field, len(field)):
                asyncio.run(contestant.round())
            print(f"\rround {number}/{rounds}", end="", file=sys.stderr, flush=True)
            if number == 0:  # warm-up
                for contestant in field:
                    contestant.forget()
        with busy_thread():
            for contestant in field:
                asyncio.run(contestant.contended_round())
        report = otel_rollout.shutdown(0)
    plain, sdk = field[0], field[4]
    return {
        "rounds": rounds,
        "dropped": dict(report.dropped),
        "contestants": {contestant.name: contestant.result(plain, sdk) for contestant in field},
    }
