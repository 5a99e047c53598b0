"""Measure how close delivery comes to the most that its target takes.

    python -m benchmarks.delivery_limit [--quick] [--only TARGET]

A target's limit is the rate at which it takes requests that were made before. They are our exporter's own
requests, for equal trajectories, captured from a server that stores nothing. In each round every way of
sending has trajectories of its own, since a target that knows a span does other work. Ways take turns in an
order drawn anew: the forwarder, whose time begins with the first operation of a program that records, and
ready-made requests, one at a time and two at once. A database has no requests: its limit is the rate at which
MLflow's package stores batches of spans that were decoded before. Prints JSON: spans per second, in each
round our part of the limit, which is the faster way of sending ready-made requests, and the CPU time of the
forwarder, which does not depend on other programs as the rates do.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import requests

from benchmarks import tracers
from benchmarks.accepting_server import Handler
from benchmarks.delivery import forwarders_cpu_seconds
from benchmarks.targets import TARGETS, Target, mlflow_database, running
from benchmarks.tracers import PROJECT, SPANS
from tests.local_weave import API_KEY, ENTITY

OURS = "otel-rollout"
LIMITS = {"ready-made, one at a time": 1, "ready-made, two at once": 2}
"""Way of sending ready-made requests → requests at once."""
STORED = "ready-made, stored by MLflow's package"
TRAJECTORIES, ROUNDS = 800, 5
_TRACER = {"mlflow": "otel-rollout → MLflow", "weave": "otel-rollout → Weave"}
_SPAN_PATHS = ("/v1/traces", "/calls/complete")
"""Ends of the paths to which spans are posted."""
_ANSWER_SECONDS = 0.2
"""Seconds until a capturing server answers: recording is faster, so that batches are full."""
_EXPERIMENT_HEADER = "x-mlflow-experiment-id"
_KEPT_HEADERS = ("Content-Type", "Content-Encoding", "Authorization")


class Recorder(NamedTuple):
    """A program that records bursts, and the directory of its spool."""

    process: tracers.Process
    spool: Path


class Request(NamedTuple):
    """A captured request that posts spans."""

    path: str
    headers: Mapping[str, str]
    body: bytes


def run(quick: bool = False, only: str | None = None) -> dict[str, Any]:
    """Measure all targets, or one."""
    rounds, trajectories = (1, 200) if quick else (ROUNDS, TRAJECTORIES)
    measured: dict[str, Callable[[int, int], dict[str, Any]]] = {
        "MLflow server": partial(_http, "mlflow"),
        "Weave's server": partial(_http, "weave"),
        "MLflow's database, SQLite": _database,
    }
    found = {
        name: measure(rounds, trajectories) for name, measure in measured.items() if only in (None, name)
    }
    return {"rounds": rounds, "spans": trajectories * SPANS, "targets": found}


def _http(target_name: str, rounds: int, trajectories: int) -> dict[str, Any]:
    with running(TARGETS[target_name]) as (target, place), ExitStack() as stack:
        ours = stack.enter_context(
            _recording(target_name, trajectories, target.variables(target.port), place)
        )
        experiment = _experiment_id(target.port) if target_name == "mlflow" else ""
        made = iter(_captured(target_name, trajectories, place, rounds * len(LIMITS)))
        ways: dict[str, Callable[[], float]] = {OURS: lambda: _seconds_of(ours.process)}
        for name, at_once in LIMITS.items():
            ways[name] = partial(_post_next, made, target.port, experiment, at_once)
        return _in_turns(ways, target, ours.spool, rounds, trajectories)


def _database(rounds: int, trajectories: int) -> dict[str, Any]:
    with running(mlflow_database) as (target, place), ExitStack() as stack:
        ours = stack.enter_context(_recording("mlflow", trajectories, target.variables(0), place))
        files = place / "made"
        files.mkdir()
        for number, made in enumerate(_captured("mlflow", trajectories, place, rounds)):
            bodies = [gzip.decompress(request.body) for request in made]
            (files / f"{number}.pickle").write_bytes(pickle.dumps(bodies))
        variables = tracers.environment(_TRACER["mlflow"], target.variables(0), place / "none")
        process = tracers.Process(_TRACER["mlflow"], __spec__.name, [str(files)], variables)
        store = stack.enter_context(process)
        store.ask("connect")
        ways = {OURS: lambda: _seconds_of(ours.process), STORED: lambda: float(store.ask("store"))}
        return _in_turns(ways, target, ours.spool, rounds, trajectories)


def _in_turns(
    ways: Mapping[str, Callable[[], float]], target: Target, spool: Path, rounds: int, trajectories: int
) -> dict[str, Any]:
    order = random.Random(0)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    spans = trajectories * SPANS
    cpu = []
    for _ in range(rounds):
        for name in order.sample(list(ways), len(ways)):
            before, used = target.spans(), forwarders_cpu_seconds(str(spool))
            rates[name].append(spans / ways[name]())
            arrived = target.spans() - before
            if arrived != spans:
                raise RuntimeError(f"{name}: {arrived} of {spans} spans arrived")
            if name == OURS:
                cpu.append((forwarders_cpu_seconds(str(spool)) - used) / spans * 1e6)
    parts = [rates[OURS][n] / max(rates[name][n] for name in ways if name != OURS) for n in range(rounds)]
    return {
        "spans_per_second": {name: round(median(found)) for name, found in rates.items()},
        "part_of_limit": round(median(parts), 3),
        "parts": [round(part, 3) for part in parts],
        "cpu_us": round(median(cpu), 1),
        "samples": {name: [round(rate) for rate in found] for name, found in rates.items()},
    }


@contextmanager
def _recording(
    target_name: str, trajectories: int, variables: dict[str, str], place: Path
) -> Iterator[Recorder]:
    """Start a program that records bursts, and a forwarder that has delivered one trajectory."""
    name = _TRACER[target_name]
    spool = place / f"spool-{len(list(place.iterdir()))}"
    environment = tracers.environment(name, variables, spool)
    with tracers.Process(name, "benchmarks.delivery", [name, str(trajectories)], environment) as process:
        process.ask("connect")
        yield Recorder(process, spool)


def _seconds_of(process: tracers.Process) -> float:
    """Record a burst; return the seconds until its forwarder has delivered it."""
    begin = time.monotonic()
    process.ask("burst")
    return time.monotonic() - begin


def _captured(target_name: str, trajectories: int, place: Path, times: int) -> list[list[Request]]:
    """Return the requests of a number of bursts."""
    kept: list[Request] = []

    class Capturing(Handler):
        def received(self, body: bytes) -> None:
            if self.path.endswith(_SPAN_PATHS):
                time.sleep(_ANSWER_SECONDS)
                headers = {name: self.headers[name] for name in _KEPT_HEADERS if name in self.headers}
                kept.append(Request(self.path, headers, body))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Capturing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    variables = {
        "MLFLOW_TRACKING_URI": url,
        "WANDB_BASE_URL": url,
        "WF_TRACE_SERVER_URL": url,
        "WANDB_API_KEY": API_KEY,
        "WANDB_ENTITY": ENTITY,
    }
    bursts = []
    with _recording(target_name, trajectories, variables, place) as recorder:
        for _ in range(times):
            kept.clear()
            recorder.process.ask("burst")
            bursts.append(list(kept))
    server.shutdown()
    return bursts


def _post_next(made: Iterator[Sequence[Request]], port: int, experiment: str, at_once: int) -> float:
    """Post the requests of the next burst; return the seconds that this took."""
    sessions = threading.local()

    def post(request: Request) -> None:
        if not hasattr(sessions, "session"):
            sessions.session = requests.Session()
        headers = {**request.headers, **({_EXPERIMENT_HEADER: experiment} if experiment else {})}
        url = f"http://127.0.0.1:{port}{request.path}"
        sessions.session.post(url, data=request.body, headers=headers, timeout=300).raise_for_status()

    with ThreadPoolExecutor(at_once) as pool:
        begin = time.monotonic()
        for answered in [pool.submit(post, request) for request in next(made)]:
            answered.result()
        return time.monotonic() - begin


def _experiment_id(port: int) -> str:
    url = f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/get-by-name"
    answer = requests.get(url, params={"experiment_name": PROJECT}, timeout=60)
    return str(answer.json()["experiment"]["experiment_id"])


def start(files: Path) -> Mapping[str, Callable[[], Any]]:
    """Serve questions in a process that stores spans by MLflow's package."""
    from mlflow.entities.span import Span
    from mlflow.tracing.client import TracingClient
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    client = TracingClient()
    bursts = iter(sorted(files.iterdir(), key=lambda path: int(path.stem)))

    def connect() -> None:
        client.store.get_experiment_by_name(PROJECT)

    def store() -> float:
        experiment_id = client.store.get_experiment_by_name(PROJECT).experiment_id
        batches = [
            [
                Span.from_otel_proto(span, resource=of_resource.resource)
                for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans
                for of_scope in of_resource.scope_spans
                for span in of_scope.spans
            ]
            for body in pickle.loads(next(bursts).read_bytes())
        ]
        begin = time.monotonic()
        for batch in batches:
            client.log_spans(experiment_id, batch)
        return time.monotonic() - begin

    return {"connect": connect, "store": store}


def main() -> None:
    """Measure, or run as the process that stores."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delivery_limit", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer spans, for a first impression")
    parser.add_argument("--only", metavar="TARGET", help="measure one target, such as 'MLflow server'")
    parser.add_argument("files", nargs="?", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.files:
        tracers.answer(partial(start, given.files))
    else:
        print(json.dumps(run(given.quick, given.only), indent=1))


if __name__ == "__main__":
    main()
