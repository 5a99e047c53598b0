"""Measure a table of many trajectories: commands with their start-up, pages, and the forwarder.

    python -m benchmarks.table_scale [--trajectories 1000000] [--runs 5]

A table of so many trajectories of 20 spans is compacted, and gets recent ones. A tenth of them are in a
table that is compacted, and in one that is not. Each round runs every command once, in an order drawn anew.
Prints JSON. `python -m benchmarks --only table_scale` measures a million, for docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import table, view
from benchmarks.table_queries import COMMANDS, command, in_process, write
from tests.table.generated_table import Shape

_LARGE: Final = {
    **{name: COMMANDS[name] for name in ("steps", "filtered list", "show of one")},
    **{name: [name] for name in ("report", "health")},
}
"""Question → arguments of the command, on the large table."""
_SMALL: Final = ("steps", "filtered list")
_RECENT: Final = 1_024
"""Trajectories that no stored row is of: an hour of a run."""
Used = tuple[float, float, float]


def run(quick: bool) -> dict[str, Any]:
    """Measure a table of a million trajectories, or of few."""
    return measured(10_000, 1) if quick else measured(1_000_000, 5)


def measured(trajectories: int, runs: int) -> dict[str, Any]:
    """Measure tables of so many trajectories, and of a tenth."""
    with tempfile.TemporaryDirectory(prefix="otel-rollout-bench-") as directory:
        large, compacted, small = (Path(directory) / name for name in ("large", "compacted", "small"))
        in_process(write, large, Shape(trajectories))
        in_process(write, small, Shape(trajectories // 10))
        shutil.copytree(small, compacted)
        compaction = [command(["table", "compact", str(path)]) for path in (compacted, large)][-1]
        in_process(write, large, Shape(min(_RECENT, trajectories // 8), seed=8))
        kinds = {
            "compacted, with recent rows": large,
            "a tenth, compacted": compacted,
            "a tenth, not compacted": small,
        }
        asked = [
            (kind, name, [*(_LARGE[name]), "--from", str(path)])
            for kind, path in kinds.items()
            for name in (_LARGE if path == large else _SMALL)
        ]
        used: dict[tuple[str, str], list[Used]] = {(kind, name): [] for kind, name, _ in asked}
        for _ in range(runs):
            for kind, name, arguments in random.sample(asked, len(asked)):
                used[kind, name].append(command(arguments))
        pages = view.measured(str(large), has_browser=False)
    used["all rows new", "table compact"] = [compaction]
    commands = [{"table": kind, "question": name, **_summary(each)} for (kind, name), each in used.items()]
    return {
        "trajectories": trajectories,
        "commands": commands,
        "pages": {name: round(page["p95_ms"], 1) for name, page in pages["pages"].items()},
        "server_mb": pages["server_mb"],
        "forwarder": table.run(quick=trajectories < 100_000)["write"],
    }


def _summary(used: list[Used]) -> dict[str, float]:
    walls, cpus, memory = zip(*used, strict=True)
    seconds = {"seconds": median(walls), "least": min(walls), "most": max(walls), "cpu_seconds": median(cpus)}
    return {**{name: round(value, 2) for name, value in seconds.items()}, "peak_mib": round(max(memory))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table_scale", description=__doc__)
    parser.add_argument(
        "--trajectories", type=int, default=1_000_000, help="of the large table; 2,000 or more"
    )
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    print(json.dumps(measured(given.trajectories, given.runs), indent=1))
