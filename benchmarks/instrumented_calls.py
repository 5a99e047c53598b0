"""Measure what an instrumented OpenAI call costs: joined to trajectories, or with the SDK's batch processor.

    python -m benchmarks.instrumented_calls [--quick] [--python PYTHON]

PYTHON's environment has openai, its instrumentor, and opentelemetry-exporter-otlp-proto-http; by default it
is that of ``make agents``. The call is of the real `openai` client; its transport answers in
this process, so that no server is measured. The instrumentor is OpenInference's. Two processes take turns:
one with otel-rollout; one with OpenTelemetry's SDK, whose batch processor sends OTLP to a server on 127.0.0.1
that stores nothing. In each round, a process makes calls without the instrumentor, then with it; the figures
are differences of the two. A conversation has eight messages of 250 bytes.

Prints JSON, for each figure otel-rollout's part of the SDK's, too:

- ``bytecodes``: instructions of Python in the calling thread, equal on every machine.
- ``cpu``: µs of the calling thread per call: of each round the median and the least of its calls; of the
  rounds the median, and quartiles.
- ``process``: µs of all threads per call, until the SDK has delivered and otel-rollout has written everything
  to the spool, from which another process delivers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from benchmarks.counts import instructions

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = ROOT / ".venv-agents" / "bin" / "python"
JOINED, SDK = "otel-rollout", "OTel SDK, OTLP"
TURNS: Final = 4
"""Calls of a trajectory."""
FIGURES: Final = {"bytecodes": 1, "cpu": 1000, "least": 1000, "process": 1000}
"""What is measured, and the divisor of its unit: times in ns are printed in µs."""
_SETTLE_SECONDS: Final = 0.1
"""Seconds in which our flusher writes what the calls left in the journal."""
_TEXT: Final = "The lift carries at most 640 kilograms, of which five people take 360. " * 4
_MESSAGES: Final = [{"role": role, "content": _TEXT[:250]} for role in ("user", "assistant") * 4]
_ANSWER: Final = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "model",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": _TEXT[:250]}}
    ],
    "usage": {"prompt_tokens": 400, "completion_tokens": 50, "total_tokens": 450},
}


# --- In a measured process ----------------------------------------------------------------------------------


def _client() -> Any:
    """Return OpenAI's client with a transport that answers at once."""
    openai = importlib.import_module("openai")
    http = importlib.import_module("httpx2" if int(openai.__version__.partition(".")[0]) >= 3 else "httpx")
    body = json.dumps(_ANSWER).encode()

    def answer(_: Any) -> Any:
        return http.Response(200, headers={"content-type": "application/json"}, content=body)

    client = http.Client(transport=http.MockTransport(answer))
    return openai.OpenAI(base_url="http://127.0.0.1/v1", api_key="none", http_client=client)


def _joined() -> tuple[Callable[[int], Any], Callable[[], object]]:
    import otel_rollout
    from otel_rollout.record.recording.state import state

    otel_rollout.configure("spool")

    def settle() -> None:
        time.sleep(_SETTLE_SECONDS)
        active = state.runtime
        assert active is None or active.writer.flush(10)

    return lambda sample: otel_rollout.rollout_trace_attr(step=1, sample_index=sample), settle


def _sdk(port: str) -> tuple[Callable[[int], Any], Callable[[], object]]:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    exporter = OTLPSpanExporter(endpoint=f"http://127.0.0.1:{port}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    tracer = provider.get_tracer("benchmark")

    @contextmanager
    def trajectory(sample: int) -> Iterator[None]:
        with tracer.start_as_current_span("rollout", attributes={"sample": sample}):
            yield

    return trajectory, provider.force_flush


def serve(name: str, port: str, trajectories: int) -> None:
    """Measure a round for each line of standard input: without the instrumentor, then with it."""
    logging.disable(logging.ERROR)
    trajectory, settle = _joined() if name == JOINED else _sdk(port)
    instrumentor = importlib.import_module("openinference.instrumentation.openai").OpenAIInstrumentor()
    client = _client()

    def call() -> None:
        client.chat.completions.create(model="model", messages=_MESSAGES)

    def taken(around: Callable[[int], Any]) -> dict[str, float]:
        whole, calls = time.process_time_ns(), []
        for sample in range(trajectories):
            with around(sample):
                for _ in range(TURNS):
                    began = time.thread_time_ns()
                    call()
                    calls.append(time.thread_time_ns() - began)
        settle()
        everything = (time.process_time_ns() - whole) / len(calls)
        with around(trajectories):
            bytecodes = min(instructions(call) for _ in range(TURNS))
        return {"cpu": median(calls), "least": min(calls), "process": everything, "bytecodes": bytecodes}

    for _ in sys.stdin:
        plain = taken(lambda sample: nullcontext())
        instrumentor.instrument()
        traced = taken(trajectory)
        instrumentor.uninstrument()
        more = {figure: traced[figure] - plain[figure] for figure in FIGURES}
        print(json.dumps({"plain": plain["cpu"], **more}), flush=True)


# --- In the process that compares ---------------------------------------------------------------------------


@contextmanager
def _measured(python: Path, name: str, port: str, trajectories: int) -> Iterator[Callable[[], Any]]:
    """Start a measured process; yield a function that measures a round."""
    with tempfile.TemporaryDirectory(prefix="otel-rollout-bench-") as spool:
        variables = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
        process = subprocess.Popen(
            [python, "-m", "benchmarks.instrumented_calls", "--serve", name, port, str(trajectories)],
            cwd=ROOT,
            env={**variables, "OTEL_ROLLOUT_SPOOL_DIR": spool, "OTEL_ROLLOUT_FORWARDER_LINGER": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def measure() -> Any:
            questions.write("round\n")
            questions.flush()
            answer = answers.readline()
            if not answer:
                raise RuntimeError(f"{name}: the process ended")
            return json.loads(answer)

        try:
            yield measure
        finally:
            process.kill()
            process.wait()


def run(quick: bool = False, python: Path = PYTHON) -> dict[str, Any]:
    """Measure the three in turns."""
    rounds, trajectories = (3, 10) if quick else (15, 25)
    order = random.Random(0)
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.accepting_server"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(server.kill)
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        names = (JOINED, SDK)
        measure = {name: stack.enter_context(_measured(python, name, port, trajectories)) for name in names}
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for number in range(rounds + 1):
            for name in order.sample(names, len(names)):
                sample = measure[name]()
                if number:  # the first round warms up
                    samples[name].append(sample)
    return {"rounds": rounds, "calls": trajectories * TURNS, **_figures(samples)}


def _figures(samples: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    found: dict[str, Any] = {"call_us": round(median(each["plain"] for each in samples[SDK]) / 1000, 1)}
    for figure, unit in FIGURES.items():
        costs = {name: [each[figure] / unit for each in rounds] for name, rounds in samples.items()}
        middle = {name: median(each) for name, each in costs.items()}
        found[figure] = {
            name: {"median": round(middle[name], 1), "quartiles": [round(q, 1) for q in quantiles(each)[::2]]}
            for name, each in costs.items()
        }
        ratios = [ours / theirs for ours, theirs in zip(costs[JOINED], costs[SDK], strict=True)]
        found[figure]["share_of_sdk"] = round(middle[JOINED] / middle[SDK], 3)
        found[figure]["share_of_sdk_by_round"] = [round(q, 3) for q in quantiles(ratios)]
    return found


def main() -> None:
    """Measure, or run as one of the measured processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instrumented_calls", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first impression")
    parser.add_argument(
        "--python",
        type=Path,
        default=PYTHON,
        help="interpreter with openai, its instrumentor and the OTLP exporter",
    )
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        name, port, trajectories = given.serve
        serve(name, port, int(trajectories))
    else:
        print(json.dumps(run(given.quick, given.python), indent=1))


if __name__ == "__main__":
    main()
