"""``python -m benchmarks [--quick] [--only PART]``: measure, print tables, write ``results/latest.json``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import hot_path, otlp_delivery, ray_calls, tables, volume, weave_delivery

RESULTS = Path(__file__).parent / "results" / "latest.json"
PARTS = {
    "hot_path": hot_path.run,
    "ray_calls": ray_calls.run,
    "otlp_delivery": otlp_delivery.run,
    "weave_delivery": weave_delivery.run,
    "volume": volume.run,
}
PACKAGES = ("otel-rollout", "opentelemetry-sdk", "mlflow", "orjson", "ray")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    processors = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in processors.splitlines() if "model name" in line]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def table(result: dict[str, Any]) -> Table:
    """The hot path as people read it."""
    title = "One operation, 2 KB in and 2 KB out: µs over the plain call (medians)"
    shown = Table(title=title, title_justify="left")
    headings = ("", "CPU", "quartiles", "process CPU", "wall", "÷ SDK", "busy p50", "busy p99")
    for heading in headings:
        shown.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, cost in result["contestants"].items():
        low, high = cost["cpu_us_quartiles"]
        shown.add_row(
            name,
            f"{cost['cpu_us']:.2f}",
            f"{low:.2f}–{high:.2f}",
            f"{cost['process_cpu_us']:.2f}",
            f"{cost['wall_us']:.2f}",
            f"{cost['share_of_sdk_span']:.2f}",
            f"{cost['beside_busy_thread_wall_us_p50']:.1f}",
            f"{cost['beside_busy_thread_wall_us_p99']:.0f}",
        )
    return shown


def ray_table(result: dict[str, Any]) -> Table:
    """Calls of Ray's as people read them."""
    shown = Table(title="A call of Ray's: wall µs over the plain one (medians)", title_justify="left")
    for heading in ("", *tables.RAY_HEADINGS):
        shown.add_column(heading, justify="right" if heading else "left")
    for row in tables.ray_rows(result):
        shown.add_row(*row)
    return shown


def weave_table(result: dict[str, Any]) -> Table:
    """Delivery into Weave as people read it."""
    shown = Table(title="Into a local Weave server (medians)", title_justify="left")
    for heading in ("", *tables.WEAVE_HEADINGS):
        shown.add_column(heading, justify="right" if heading else "left")
    for row in tables.weave_rows(result):
        shown.add_row(*row)
    return shown


def otlp_table(result: dict[str, Any]) -> Table:
    """Delivery to a Collector as people read it."""
    title = f"Delivery of a span of {result['span_bytes']} bytes to a Collector: CPU µs (medians)"
    shown = Table(title=title, title_justify="left")
    for heading in ("", *tables.OTLP_HEADINGS):
        shown.add_column(heading, justify="right" if heading else "left")
    for row in tables.otlp_rows(result):
        shown.add_row(*row)
    return shown


def volume_table(result: dict[str, Any]) -> Table:
    """Trajectories of many turns as people read them."""
    shown = Table(title="A day of trajectories of 30 turns", title_justify="left")
    for heading in ("", *tables.VOLUME_HEADINGS):
        shown.add_column(heading, justify="right" if heading else "left")
    for row in tables.volume_rows(result):
        shown.add_row(*row)
    return shown


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first impression")
    parser.add_argument("--only", choices=PARTS, help="measure this part, and keep the others' figures")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    kept = json.loads(RESULTS.read_text()) if options.only else {}
    measured = {name: PARTS[name](options.quick) for name in ([options.only] if options.only else PARTS)}
    result = {**kept, "machine": machine(), **measured}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    tables.update(result)
    console = Console(width=110)
    console.print()
    console.print(table(result["hot_path"]))
    console.print(ray_table(result["ray_calls"]))
    console.print(weave_table(result["weave_delivery"]))
    console.print(otlp_table(result["otlp_delivery"]))
    console.print(volume_table(result["volume"]))
    console.print("÷ SDK: CPU as a share of the bare SDK span's. busy: wall µs of single calls while another")
    console.print(f"thread computes. Raw samples: {RESULTS.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
