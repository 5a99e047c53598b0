"""The caller's cost of an operation, as ``hot_path`` measures it, under everybody else who traces.

    python -m benchmarks.peers [--quick]

Each peer has a process of its own, in which the plain call, a span of the bare SDK without content, and ours
take turns with it: ratios are within one process. Each sends to a real server on this machine, and delivers
what it has after each of its rounds, outside of what is measured. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import otel_rollout
from benchmarks import tracers
from benchmarks.hot_path import Contestant, compete, sdk_span
from benchmarks.tracers import TRACERS, Tracing, generate
from otel_rollout import rollout_trace_attr, rollout_trace_op

PEERS = (
    "OTel SDK, OTLP",
    "logfire.instrument",
    "mlflow.trace",
    "verl, mlflow backend",
    "weave.op",
    "verl, weave backend",
)
PLAIN, SDK, OURS = "plain call", "OTel SDK span, no content", "otel-rollout"
_CALLS = 100
"""Of a peer's, in a round."""


class Peer(Contestant):
    """Somebody who delivers after each round, so as not to compete with the next contestant."""

    def __init__(self, name: str, tracing: Tracing) -> None:
        super().__init__(name, tracing.generate, lambda: tracing.trajectory(1, 3), _CALLS)
        self._flush = tracing.flush

    async def round(self) -> None:
        """Measure a round."""
        await super().round()
        self._flush()

    async def contended_round(self) -> None:
        """Measure single calls."""
        await super().contended_round()
        self._flush()


def measure(name: str, rounds: int) -> dict[str, Any]:
    """In a process of its own: a peer, and those it is compared with."""
    order = random.Random(0)
    with ExitStack() as stack:
        spool = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        otel_rollout.configure({"spool": {}}, project_name="bench", spool_dir=Path(spool), forwarder_linger=0)
        stack.callback(otel_rollout.shutdown, 0)
        tracing = TRACERS[name].start()
        stack.callback(tracing.finish)
        plain = Contestant(PLAIN, generate, nullcontext, 20_000)
        sdk = Contestant(SDK, *sdk_span(stack))
        ours = Contestant(
            OURS, rollout_trace_op(generate), lambda: rollout_trace_attr(step=1, sample_index=3, rollout_n=0)
        )
        field = [plain, sdk, ours, Peer(name, tracing)]
        compete(field, rounds, order)
        return {
            "versions": TRACERS[name].versions(),
            "contestants": {contestant.name: contestant.result(plain, sdk) for contestant in field},
        }


def run(quick: bool = False) -> dict[str, Any]:
    """All of them, one after the other; in haste without verl, which takes long to import."""
    from benchmarks.targets import TARGETS, running

    rounds = 5 if quick else 25
    field = [peer for peer in PEERS if not quick or "verl" not in TRACERS[peer].packages]
    found = {}
    for target, start in TARGETS.items():
        with running(start) as (server, place):
            for name in (peer for peer in field if TRACERS[peer].target == target):
                variables = tracers.environment(name, server.variables(server.port), place / "spool")
                found[name] = tracers.run(name, __spec__.name, [name, str(rounds)], variables)
    return {"rounds": rounds, "peers": {name: found[name] for name in field}}


def main() -> None:
    """Measure, or be one of the processes measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first impression")
    parser.add_argument("peer", nargs="?", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("rounds", nargs="?", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        logging.disable(logging.ERROR)
        answers, sys.stdout = sys.stdout, sys.stderr  # clients greet
        print(json.dumps(measure(given.peer, given.rounds)), file=answers, flush=True)
    else:
        print(json.dumps(run(given.quick), indent=1))


if __name__ == "__main__":
    main()
