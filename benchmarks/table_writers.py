"""Measure many writers that append to one rollout table on an object store, as forwarders of many nodes do.

    make s3-server
    python -m benchmarks.table_writers --writers 1 4 16 64

Each writer is a process that commits the rows of ten trajectories every ten seconds, for a minute. The server
is versitygw, on this machine; its log of requests tells how often another writer was faster. Prints a line of
JSON for each number of writers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from arro3.core import Table

from otel_rollout.table.errors import TableError
from otel_rollout.table.location import location_of
from otel_rollout.table.store import Store
from tests.delta import s3_server
from tests.table.generated_table import Shape, batches

_TRAJECTORIES = 10
"""Trajectories of a commit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--every", type=float, default=10.0, help="seconds between commits of a writer")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--table", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        _write(options.table, options.every, options.seconds)
        return
    for number in options.writers:
        print(json.dumps(_measured(number, options.every, options.seconds)), flush=True)


def _measured(number: int, every: float, seconds: float) -> dict[str, Any]:
    """Measure a number of writers beside each other."""
    with tempfile.TemporaryDirectory() as directory:
        logging = ["--access-log", f"{directory}/requests"]
        with s3_server.running(Path(directory) / "store", logging) as variables:
            found = _write_beside(number, every, seconds, {**os.environ, **variables})
        log = Path(directory) / "store" / s3_server.BUCKET / "table" / "_delta_log"
        entries = [entry for entry in log.iterdir() if entry.suffix == ".json"]
        requests = Path(directory, "requests").read_text().splitlines()
        puts = [line for line in requests if " s3_PutObject table/_delta_log/" in line]
        times = sorted(took for one in found for took in one["seconds"])
        return {
            "writers": number,
            "commits": len(times),
            "commits_per_second": round(len(times) / max(one["lasted"] for one in found), 2),
            "failed": sum(one["failed"] for one in found),
            "lost_races": sum(" 200 " not in line for line in puts),
            "requests_of_a_commit": round(len(requests) / len(times), 1),
            "seconds_p50": round(statistics.median(times), 2),
            "seconds_p95": round(times[int(0.95 * (len(times) - 1))], 2),
            "seconds_max": round(times[-1], 2),
            "cpu_seconds_of_a_commit": round(sum(one["cpu"] for one in found) / len(times), 3),
            "bytes_of_a_log_entry": round(statistics.median(entry.stat().st_size for entry in entries)),
        }


def _write_beside(
    number: int, every: float, seconds: float, environ: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Run writers that begin together; return what each one says."""
    given = ["--table", f"s3://{s3_server.BUCKET}/table", f"--every={every}", f"--seconds={seconds}"]
    command = [sys.executable, "-m", "benchmarks.table_writers", *given]
    with ExitStack() as stack:
        writers: list[Any] = []
        for _ in range(number):
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            writer = subprocess.Popen(command, env=environ, text=True, **pipes)
            stack.enter_context(writer)
            stack.callback(writer.kill)
            writers.append(writer)
        for writer in writers:  # which has imported what it needs
            writer.stdout.readline()
        for writer in writers:
            writer.stdin.close()
        return [json.loads(writer.stdout.readline()) for writer in writers]


def _write(uri: str, every: float, seconds: float) -> None:
    """Commit until the time is over, and print what it took."""
    store, name = Store(location_of(uri, "--table")), f"writer-{os.getpid()}"
    rows = [*Table.from_arrow(next(batches(Shape(trajectories=_TRAJECTORIES)))).to_batches()]
    print("ready", flush=True)
    sys.stdin.read()
    time.sleep(random.uniform(0, every))
    began, used = time.monotonic(), time.process_time()
    times, failed = [], 0
    for commit in range(round(seconds / every)):
        time.sleep(max(0.0, began + commit * every - time.monotonic()))
        start = time.monotonic()
        try:
            store.append(rows, name, commit)
        except TableError:
            failed += 1
        times.append(time.monotonic() - start)
    lasted, used = time.monotonic() - began, time.process_time() - used
    print(json.dumps({"seconds": times, "failed": failed, "lasted": lasted, "cpu": used}), flush=True)


if __name__ == "__main__":
    main()
