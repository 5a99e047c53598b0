"""Measure, print tables and write ``results/latest.json``.

python -m benchmarks [--quick] [--only PART]
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from typing import Any

from rich.console import Console

from benchmarks import (
    delivery,
    delivery_limit,
    growth,
    hot_path,
    language_model,
    operations,
    otlp_delivery,
    outage,
    peers,
    ray_calls,
    report,
    rollout_step,
    score_batch,
    table_scale,
    tables,
    trl_step,
    verl_agent_loop,
    volume,
)
from benchmarks.machine import machine

PARTS = {
    "hot_path": hot_path.run,
    "operations": operations.run,
    "peers": peers.run,
    "rollout_step": rollout_step.run,
    "score_batch": score_batch.run,
    "ray_calls": ray_calls.run,
    "delivery": delivery.run,
    "delivery_limit": delivery_limit.run,
    "otlp_delivery": otlp_delivery.run,
    "outage": outage.run,
    "growth": growth.run,
    "language_model": language_model.run,
    "volume": volume.run,
    "verl_agent_loop": verl_agent_loop.run,
    "trl_step": trl_step.run,
    "table_scale": table_scale.run,
}
NOT_IN_HASTE = {"delivery_limit", "otlp_delivery", "ray_calls", "table_scale", "verl_agent_loop", "volume"}
"""Parts whose time is mostly the start of other processes."""


def main() -> None:
    """Measure the parts and report their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first impression")
    parser.add_argument("--only", choices=PARTS, help="measure this part, and keep the others' figures")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # ends processes that run servers
    result: dict[str, Any] = json.loads(report.RESULTS.read_text()) if options.only else {}
    console = Console(width=130)
    seconds: dict[str, float] = result.get("seconds", {})
    for name in [options.only] if options.only else PARTS:
        if options.quick and not options.only and name in NOT_IN_HASTE:
            continue
        began = time.monotonic()
        result[name] = PARTS[name](options.quick)
        seconds[name] = round(time.monotonic() - began)
        print(f"\r{name}: {seconds[name]:.0f} s", file=sys.stderr)
        result |= {"machine": machine(), "seconds": seconds}
        report.RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    report.write(result)
    console.print()
    for table in tables.TABLES.values():
        if table.is_in(result):
            console.print(table.for_terminal(result))
    console.print("busy: wall µs of single calls while another thread computes. Raw samples:", report.RESULTS)


if __name__ == "__main__":
    main()
