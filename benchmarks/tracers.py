"""Define the compared tracers, each as its users run it.

All tracers trace the same program: ``generate``, with about 2 KB in and 2 KB out, nine times in a trajectory,
which is a span as well. A tracer starts in the process that uses it, in an environment that satisfies its
requirements. It finds its target by the variables that its users set (``benchmarks.targets``). A rollout of
one tracer is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PAYLOAD = {
    "request_id": "7f3c9a52e1",
    "messages": [
        {"role": "user", "content": "How many dollars does she spend on wool? " * 7} for _ in range(6)
    ],
    "sampling_params": {"temperature": 1.0, "top_p": 0.9},
}
RESULT = {"text": "A scarf takes two balls of wool, so she needs sixty of them. " * 30, "stop_reason": "stop"}
TURNS = 9
SPANS = TURNS + 1
"""Spans of a trajectory."""
PROJECT = "bench"
_FINISH_SECONDS = 300.0
_RUN_SECONDS = 900.0
"""Seconds after which a process counts as failed."""

Generate = Callable[..., Awaitable[dict[str, Any]]]


async def generate(payload: dict[str, Any], seconds: float = 0.0) -> dict[str, Any]:
    """Answer after a pause; the function that is traced."""
    if seconds:
        await asyncio.sleep(seconds)
    return RESULT


class Tracing(NamedTuple):
    """Objects that a started tracer gives to a rollout.

    Attributes:
        generate: the traced operation.
        trajectory: context manager around a trajectory, for its step and sample.
        flush: delivers the backlog, as far as the tracer supports it.
        finish: delivers the backlog at the end of the process.
    """

    generate: Generate
    trajectory: Callable[[int, int], AbstractContextManager[Any]]
    flush: Callable[[], object]
    finish: Callable[[], object]


class Tracer(NamedTuple):
    """A tracer.

    Attributes:
        target: name of its target in ``benchmarks.targets``.
        start: the code that its users run when their program starts.
        packages: its packages, whose versions are shown.
        environment: directory of the environment with these packages.
        variables: environment variables that its users set, except the target's.
    """

    target: str
    start: Callable[[], Tracing]
    packages: tuple[str, ...] = ()
    environment: str = ".venv"
    variables: Mapping[str, str] = MappingProxyType({})

    @property
    def python(self) -> str:
        """Return the interpreter of its environment."""
        return str(ROOT / self.environment / "bin" / "python")

    def versions(self) -> str:
        """Return its package versions, read in its environment."""
        return " · ".join(f"{package} {version(package)}" for package in self.packages)


def _untraced() -> Tracing:
    return Tracing(generate, lambda step, sample: nullcontext(), nothing, nothing)


def nothing() -> None:
    """Do nothing."""


def _ours() -> Tracing:
    import otel_rollout
    from otel_rollout import rollout_trace_attr, rollout_trace_op

    def trajectory(step: int, sample: int) -> AbstractContextManager[Any]:
        return rollout_trace_attr(step=step, sample_index=sample, rollout_n=0)

    def flush() -> None:
        deadline = time.monotonic() + _FINISH_SECONDS
        while (report := otel_rollout.status()).undelivered > sum(report.dropped.values()):
            if time.monotonic() > deadline:
                raise TimeoutError(report.summary())
            time.sleep(0.1)

    return Tracing(
        rollout_trace_op(generate), trajectory, flush, lambda: otel_rollout.shutdown(_FINISH_SECONDS)
    )


def _verl(backend: str) -> Callable[[], Tracing]:
    def start() -> Tracing:
        from verl.utils import rollout_trace as verl

        verl.RolloutTraceConfig.init(PROJECT, "bench", backend)

        class AgentLoop:
            @verl.rollout_trace_op  # type: ignore[untyped-decorator]
            async def generate(self, payload: dict[str, Any], seconds: float = 0.0) -> dict[str, Any]:
                return await generate(payload, seconds)

        def trajectory(step: int, sample: int) -> AbstractContextManager[Any]:
            around: AbstractContextManager[Any]
            around = verl.rollout_trace_attr(sample_index=sample, step=step, rollout_n=0)
            return around

        if backend == "mlflow":
            import mlflow

            flush = mlflow.flush_trace_async_logging
            return Tracing(AgentLoop().generate, trajectory, flush, flush)

        client = verl.RolloutTraceConfig.get_client()

        @contextmanager
        def within_a_call(step: int, sample: int) -> Iterator[None]:
            # verl's attributes make no span for Weave; verl's traced ``run`` does, like this one.
            with trajectory(step, sample):
                attributes = {"step": step, "sample_index": sample, "rollout_n": 0}
                call = client.create_call("AgentLoop.run", {}, attributes=attributes)
                try:
                    yield
                finally:
                    client.finish_call(call)

        return Tracing(AgentLoop().generate, within_a_call, client.flush, client.finish)

    return start


def _mlflow_trace() -> Tracing:
    import mlflow

    mlflow.set_experiment(PROJECT)

    @contextmanager
    def trajectory(step: int, sample: int) -> Iterator[None]:
        with mlflow.start_span("trajectory"):
            mlflow.update_current_trace(tags={"step": str(step), "sample_index": str(sample)})
            yield

    flush = mlflow.flush_trace_async_logging
    return Tracing(mlflow.trace(generate), trajectory, flush, flush)


def _weave_op() -> Tracing:
    import weave

    client = weave.init(PROJECT)

    @contextmanager
    def trajectory(step: int, sample: int) -> Iterator[None]:
        with weave.attributes({"step": step, "sample_index": sample}):
            call = client.create_call("trajectory", {})
            try:
                yield
            finally:
                client.finish_call(call)

    return Tracing(weave.op(generate), trajectory, client.flush, weave.finish)


def _ours_in_a_weave_process() -> Tracing:
    """Start Weave's client, which sets a global SDK provider that ours joins."""
    import weave

    weave.init(PROJECT)
    return _ours()


def _logfire() -> Tracing:
    import logfire

    logfire.configure(send_to_logfire=False, console=False)

    def trajectory(step: int, sample: int) -> AbstractContextManager[Any]:
        around: AbstractContextManager[Any] = logfire.span("trajectory", step=step, sample_index=sample)
        return around

    traced = logfire.instrument(record_return=True)(generate)
    return Tracing(traced, trajectory, logfire.force_flush, logfire.shutdown)


def _sdk() -> Tracing:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    # Not the global provider: our spans would go through it.
    tracer = provider.get_tracer("bench")

    async def traced(payload: dict[str, Any], seconds: float = 0.0) -> dict[str, Any]:
        with tracer.start_as_current_span("generate") as span:
            span.set_attribute("input.value", json.dumps({"payload": payload, "seconds": seconds}))
            result = await generate(payload, seconds)
            span.set_attribute("output.value", json.dumps(result))
            return result

    def trajectory(step: int, sample: int) -> AbstractContextManager[Any]:
        identity = {"rollout.step": step, "rollout.sample_index": sample, "rollout.rollout_n": 0}
        return tracer.start_as_current_span("trajectory", attributes=identity)

    return Tracing(traced, trajectory, provider.force_flush, provider.shutdown)


def _to(target: str, start: Callable[[], Tracing] = _ours, environment: str = ".venv") -> Tracer:
    variables = {
        "OTEL_TRACES_EXPORTER": target,
        "OTEL_ROLLOUT_PROJECT": PROJECT,
        "OTEL_ROLLOUT_EXPERIMENT": "bench",
    }
    return Tracer(target, start, ("otel-rollout", "opentelemetry-sdk"), environment, variables)


VERL = ".venv-verl-bench"
UNTRACED = "untraced"
TRACERS = {
    UNTRACED: Tracer("", _untraced),
    "otel-rollout → MLflow": _to("mlflow"),
    "verl, mlflow backend": Tracer("mlflow", _verl("mlflow"), ("verl", "mlflow"), VERL),
    "mlflow.trace": Tracer("mlflow", _mlflow_trace, ("mlflow",)),
    "otel-rollout → Weave": _to("weave"),
    "verl, weave backend": Tracer("weave", _verl("weave"), ("verl", "weave"), VERL),
    "weave.op": Tracer("weave", _weave_op, ("weave",), VERL),
    "otel-rollout, after weave.init": _to("weave", _ours_in_a_weave_process, VERL),
    "otel-rollout → Collector": _to("otlp"),
    "OTel SDK, OTLP": Tracer("otlp", _sdk, ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")),
    "logfire.instrument": Tracer("otlp", _logfire, ("logfire", "opentelemetry-sdk"), ".venv-logfire"),
}


def environment(name: str, variables: dict[str, str], spool: Path) -> dict[str, str]:
    """Return the variables of a process that traces to a target."""
    quiet = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WEAVE_PRINT_CALL_LINK": "false",  # otherwise it prints a line per trajectory
        "WANDB_ERROR_REPORTING": "false",  # otherwise it reports to a host that does not exist
        "PYTHONWARNINGS": "ignore",
    }
    ours = {
        "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
        "OTEL_ROLLOUT_FORWARDER_LINGER": "3",
        "VERL_USE_EXTERNAL_PLUGINS": "none",  # verl's own tracing is measured
    }
    return {**inherited(), **quiet, **ours, **variables, **TRACERS[name].variables}


def inherited() -> dict[str, str]:
    """Return this process's variables without those of tracers.

    MLflow sets some variables of its own in the process.
    """
    return {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "MLFLOW_"))}


def run(name: str, module: str, arguments: list[str], variables: dict[str, str]) -> dict[str, Any]:
    """Run a module in the tracer's environment; return its last line of output."""
    ran = subprocess.run(
        [TRACERS[name].python, "-m", module, *arguments],
        env=variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_SECONDS,
    )
    if ran.returncode:
        raise RuntimeError(f"{name}: {module} failed:\n{ran.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


class Process:
    """A module in the tracer's environment that answers questions.

    Several such processes can take turns. The module starts at once; the first question waits until it is
    ready.
    """

    def __init__(self, name: str, module: str, arguments: list[str], variables: dict[str, str]) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [TRACERS[name].python, "-m", module, *arguments],
            env=variables,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, question: str) -> Any:
        """Ask a question and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(question + "\n")
            self._process.stdin.flush()
        too_late = threading.Timer(_RUN_SECONDS, self._process.kill)
        too_late.start()
        answer = self._process.stdout.readline()
        too_late.cancel()
        if not answer:
            self._errors.seek(0)
            raise RuntimeError(f"{self._name}: no answer to {question!r}:\n{self._errors.read()[-3000:]}")
        return json.loads(answer)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def answer(start: Callable[[], Mapping[str, Callable[[], Any]]]) -> None:
    """Run as such a process: perform the commands on standard input."""
    logging.disable(logging.ERROR)
    answers, sys.stdout = sys.stdout, sys.stderr  # clients print a greeting
    known = start()
    for line in sys.stdin:
        print(json.dumps(known[line.strip()]()), file=answers, flush=True)
