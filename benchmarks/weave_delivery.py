"""Spans into one local Weave server: by this project, and by verl's way with weave's client.

    python -m benchmarks.weave_delivery [--quick] [--outage SECONDS]

Both write the same trajectories (one root, nine operations, 2 KB in and out) to the same server, in turns.
Ours are recorded by a process of its own and delivered by the forwarder's code; the client's calls are made
with ``create_call`` and ``finish_call``, then flushed. Stores: "null" keeps nothing, so the server is not
what bounds; "sqlite" and "chdb" are weave's own. With --outage the server answers 503 for so long, and in the
middle of it the process that delivers is killed: our forwarder, the client's process. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.weave_client import TEXT, caller_figures
from tests.local_weave import ENTITY, PYTHON, ROOT, LocalWeave

CLIENT = ROOT / "benchmarks" / "weave_client.py"
SQLITE_PYTHON = ROOT / ".venv-weave-sqlite" / "bin" / "python"
PATIENCE = 120.0
"""Seconds after which something is wrong."""
MODULE = [sys.executable, "-m", "benchmarks.weave_delivery"]
STORES = {"null": PYTHON, "sqlite": SQLITE_PYTHON, "chdb": PYTHON}
Figures = dict[str, float]


def record(spans: int) -> None:
    """In a process of its own: record trajectories, print what the caller was held up; do not deliver."""
    import otel_rollout
    from otel_rollout import rollout_trace_attr, rollout_trace_op

    @rollout_trace_op
    def operation(text: str) -> dict[str, str]:
        return {"text": text}

    def plain(text: str) -> dict[str, str]:
        return {"text": text}

    held_up: list[float] = []
    for index in range(spans // 10):
        trajectory = rollout_trace_attr(sample_index=index, step=1, rollout_n=0)
        began = time.perf_counter_ns()
        trajectory.__enter__()
        entered = time.perf_counter_ns() - began
        for _ in range(9):
            began = time.perf_counter_ns()
            operation(TEXT)
            middle = time.perf_counter_ns()
            plain(TEXT)
            held_up.append((2 * middle - began - time.perf_counter_ns()) / 1e3)
        began = time.perf_counter_ns()
        trajectory.__exit__(None, None, None)
        held_up.append((entered + time.perf_counter_ns() - began) / 1e3)
    print(json.dumps(caller_figures(held_up)), flush=True)
    otel_rollout.shutdown(float(os.environ.get("BENCH_SHUTDOWN", "0")))


def deliver(place: str) -> None:
    """In a process of its own: deliver a node directory by the forwarder's code; print how long it took."""
    from otel_rollout.deliver.delivery import Delivery
    from otel_rollout.deliver.exporters import load

    exporter = load("weave", {})
    # As one that was there when they were recorded; a successor asks first for what it finds.
    exporter._born_ns = 0  # type: ignore[attr-defined]
    cpu, began = time.process_time(), time.perf_counter()
    delivery = Delivery("weave", exporter, Path(place))
    delivery.start()
    while not delivery.is_caught_up():
        if time.perf_counter() - began > PATIENCE:
            raise TimeoutError("the spans do not arrive")
        time.sleep(0.005)
    figures = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    delivery.stop(30)
    print(json.dumps(figures), flush=True)


def ours(weave: LocalWeave, project: str, spans: int) -> Figures:
    """Record, then deliver."""
    with tempfile.TemporaryDirectory() as spool:
        variables = _variables(weave, project, spool)
        # The forwarder started meanwhile finds nobody there, and gives up: what is measured does it all.
        nobody = {"WANDB_BASE_URL": "http://127.0.0.1:9", "OTEL_ROLLOUT_FORWARDER_LINGER": "0"}
        recorded = _run([*MODULE, "--record", str(spans)], variables | nobody)
        _wait_for_forwarders(spool)
        [node_dir] = {path.parent for path in Path(spool).rglob("*.jsonl")}
        delivered = _run([*MODULE, "--deliver", str(node_dir)], variables)
    return {**recorded, **delivered}


def theirs(weave: LocalWeave, project: str, spans: int) -> Figures:
    """As verl writes to Weave."""
    command = [str(PYTHON), str(CLIENT), f"{ENTITY}/{project}", str(spans)]
    return _run(command, {**os.environ, **weave.environment})


def measure(store: str, spans: int, rounds: int) -> dict[str, Any]:
    """Both, in turns, into one server."""
    contestants = {"otel-rollout": ours, "weave client, as verl": theirs}
    samples: dict[str, list[Figures]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory() as place, LocalWeave(Path(place), store, STORES[store]) as weave:
        for turn in range(rounds):
            for name, contestant in contestants.items():
                before = weave.stats()["calls"]
                figures = contestant(weave, f"bench-{turn}", spans)
                figures["lost"] = spans - (weave.stats()["calls"] - before)
                samples[name].append(figures)
    return {name: _summary(taken, spans) for name, taken in samples.items()}


def outage(seconds: float, spans: int) -> dict[str, dict[str, int]]:
    """503 for a while, kill -9 in the middle: what arrives, how often."""
    with tempfile.TemporaryDirectory() as place, LocalWeave(Path(place), "chdb") as weave:
        return {
            "otel-rollout": _our_outage(weave, seconds, spans),
            "weave client, as verl": _their_outage(weave, seconds, spans),
        }


def run(quick: bool) -> dict[str, Any]:
    """All stores."""
    spans, rounds = (1000, 1) if quick else (3000, 3)
    stores = {store: measure(store, spans, rounds) for store in STORES}
    return {"spans": spans, "rounds": rounds, "stores": stores}


def _our_outage(weave: LocalWeave, seconds: float, spans: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as spool:
        variables = _variables(weave, "outage-ours", spool)
        variables["BENCH_SHUTDOWN"] = str(seconds + 120)
        # The first batches are stored and answered 503 all the same: the worst case for duplicates.
        weave.fail("calls/complete", 503, times=3, after=True)
        weave.fail("calls/complete", 503, times=1_000_000)
        command = [*MODULE, "--record", str(spans)]
        with subprocess.Popen(command, env=variables, cwd=ROOT, stdout=subprocess.DEVNULL) as job:
            time.sleep(seconds / 2)
            for process in _forwarders(spool):
                os.kill(process, signal.SIGKILL)
            time.sleep(seconds / 2)
            weave.heal()
            job.wait(seconds + 120)
    return _arrived(weave, "outage-ours", spans)


def _their_outage(weave: LocalWeave, seconds: float, spans: int) -> dict[str, int]:
    weave.fail("calls/complete", 503, times=1_000_000)
    weave.fail("call/upsert_batch", 503, times=1_000_000)
    command = [str(PYTHON), str(CLIENT), f"{ENTITY}/outage-theirs", str(spans), "hold"]
    variables = {**os.environ, **weave.environment}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        assert job.stdout is not None
        job.stdout.readline()
        time.sleep(seconds / 2)
        job.kill()
    time.sleep(seconds / 2)
    weave.heal()
    time.sleep(1)
    return _arrived(weave, "outage-theirs", spans)


def _arrived(weave: LocalWeave, project: str, spans: int) -> dict[str, int]:
    times = Counter(call["id"] for call in weave.calls(project))
    return {"spans": spans, "lost": spans - len(times), "duplicates": sum(times.values()) - len(times)}


def _forwarders(spool: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "otel_rollout.deliver" in command and any(part.startswith(spool) for part in command):
            found.append(int(process.name))
    return found


def _wait_for_forwarders(spool: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while _forwarders(spool):
        if time.monotonic() > deadline:
            raise TimeoutError("a forwarder does not give up")
        time.sleep(0.05)


def _variables(weave: LocalWeave, project: str, spool: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        **weave.environment,
        "OTEL_TRACES_EXPORTER": "weave",
        "OTEL_ROLLOUT_PROJECT": project,
        "OTEL_ROLLOUT_SPOOL_DIR": spool,
    }


def _run(command: list[str], variables: dict[str, str]) -> Figures:
    ran = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{command} failed:\n{ran.stderr[-2000:]}")
    figures: Figures = json.loads(ran.stdout.splitlines()[-1])
    return figures


def _summary(samples: list[Figures], spans: int) -> dict[str, Any]:
    def middle(name: str, scale: float = 1) -> float:
        return round(median(sample[name] for sample in samples) * scale, 1)

    return {
        "caller_us_mean": middle("caller_us_mean"),
        "caller_us_p50": middle("caller_us_p50"),
        "delivery_cpu_us": middle("cpu_seconds", 1e6 / spans),
        "spans_per_second": round(median(spans / sample["seconds"] for sample in samples)),
        "lost": int(sum(sample["lost"] for sample in samples)),
        "samples": samples,
    }


def main() -> None:
    """Measure, or be one of the processes measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--outage", type=float, help="only this: seconds that the server answers 503")
    parser.add_argument("--record", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--deliver", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        record(options.record)
    elif options.deliver:
        deliver(options.deliver)
    elif options.outage:
        print(json.dumps(outage(options.outage, 2000), indent=1))
    else:
        print(json.dumps(run(options.quick), indent=1))


if __name__ == "__main__":
    main()
