"""Kill at random who writes, compacts and prunes a table; then its rows are exact, and `table verify` agrees.

python -m tests.soak.table --seed N      play one round, and keep its files if it goes wrong
python -m tests.soak.table --runs 10     as many as that, each with a seed of its own
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from otel_rollout.base.waits import WAITS_VARIABLE
from otel_rollout.table import compaction, pruning
from otel_rollout.table.errors import TableError
from otel_rollout.table.lease import LeaseHeldError, LeaseLostError
from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of
from otel_rollout.table.store import Store
from tests.soak.rounds import in_turn, seeds_of
from tests.table.tables import START_NS, all_rows, appended_rows, score

WRITERS = "abc"
PRUNED = "b"
"""Writer whose run is removed while all write; what it writes after that stays."""
COMMITS = 12
"""Of each writer."""
KILLS = {"compact": 4, "compact too": 4, "prune": 2, **dict.fromkeys(WRITERS, 3)}
"""Process → how often it is killed, if it does not end before."""
_ROWS = 6
_LONGEST = 2.5
"""Seconds after which a process is killed at the latest."""
_DEADLINE = 300.0
_LEASE = {WAITS_VARIABLE: json.dumps({"lease": 2.0})}
"""A killed process holds the table for seconds, not for minutes."""


def rows_of(writer: str, commit: int) -> list[dict[str, Any]]:
    """Return the rows of a commit: trajectories, and scores by identity of those of the commit before."""
    late = {
        "run_id": f"run-{writer}",
        "step": commit - 1,
        "score_by": "identity",
        "is_root": False,
        "parent_span_id": None,
        "start_ns": START_NS + 10**9 * commit,
    }
    scores = [
        score(f"{writer}{commit:x}{index:x}", "f", index / 4, sample_index=str(index), **late)
        for index in range(_ROWS if commit else 0)
    ]
    return appended_rows(writer, commit, _ROWS) + scores


def write(store: Store, writer: str) -> None:
    """Append the commits that the table does not have, as a forwarder does after a start or a failure."""
    while (last := store.committed(writer)) != COMMITS - 1:
        commit = 0 if last is None else last + 1
        try:
            store.append([batch_of(rows_of(writer, commit))], writer, commit)
        except TableError as error:  # a pruning may come between
            if not error.is_temporary:
                raise


def look_after(store: Store, what: str, end: Path) -> None:
    """Prune the run once, or compact the table again and again."""
    while not end.exists():
        try:
            if what == "prune":
                pruning.prune(store, _run_of_the_pruned, 0)
                return
            compaction.compact(store, 0)
        except (LeaseHeldError, LeaseLostError):
            time.sleep(0.1)
        except TableError as error:
            if not error.is_temporary:
                raise


def _run_of_the_pruned(shares: pruning.Shares) -> set[pruning.Unit]:
    return {share.unit for share in shares if share.unit.run_id == f"run-{PRUNED}"}


def play(seed: int) -> int:
    """Play the round of a seed; return the number of kills.

    Raises:
        AssertionError: saying what is wrong, how to have it again, and where the table lies.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"table-{seed}-"))
    try:
        killed = _play(directory, seed)
    except AssertionError as error:
        again = f"python -m tests.soak.table --seed {seed}; files: {directory}"
        raise AssertionError(f"{error}\nAgain: {again}") from error
    shutil.rmtree(directory)
    return killed


def _play(directory: Path, seed: int) -> int:
    write_first = Store(location_of(str(directory / "table")))
    write_first.append([batch_of(rows_of("first", 0))], "first", 0)
    with ThreadPoolExecutor(len(KILLS)) as pool:
        ended = {name: pool.submit(_killed, name, directory, seed) for name in KILLS}
        try:
            for writer in WRITERS:
                ended[writer].result()
        finally:
            (directory / "end").touch()
    _told(directory, "verify")
    _told(directory, "compact")
    _told(directory, "verify")
    _check_rows(all_rows(directory / "table"))
    return sum(each.result() for each in ended.values())


def _killed(name: str, directory: Path, seed: int) -> int:
    """Start a process until it ends by itself, and kill it at random before; return the number of kills."""
    chosen = random.Random(f"{seed}/{name}")
    command = [sys.executable, "-m", "tests.soak.table", "--be", name, "--directory", str(directory)]
    for killed in range(KILLS[name] + 1):
        with (directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, env={**os.environ, **_LEASE}, stdout=log, stderr=log)
        try:
            code = process.wait(chosen.uniform(0.5, _LONGEST) if killed < KILLS[name] else _DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        else:
            assert code == 0, f"{name} failed: {(directory / f'{name}.log').read_text()[-2000:]}"
            return killed
    raise AssertionError(f"{name} does not end")


def _told(directory: Path, command: str) -> None:
    """Run a command on the table, which has to find nothing wrong."""
    arguments = [sys.executable, "-m", "otel_rollout", "table", command, str(directory / "table")]
    ran = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ran.returncode == 0, f"table {command}: {ran.stdout[-2000:]}"


def _check_rows(found: list[dict[str, Any]]) -> None:
    """Check that each row is there once; of the run that was pruned, those of the last commits."""
    traces = sorted(row["trace_id"] for row in found)
    expected = {
        writer: [sorted(row["trace_id"] for row in rows_of(writer, commit)) for commit in range(COMMITS)]
        for writer in WRITERS
    }
    left = next(at for at in range(COMMITS + 1) if at == COMMITS or expected[PRUNED][at][0] in traces)
    expected[PRUNED] = expected[PRUNED][left:]
    commits = [*itertools.chain(*expected.values()), [row["trace_id"] for row in rows_of("first", 0)]]
    assert traces == sorted(itertools.chain(*commits)), (
        f"{len(traces)} rows, of {PRUNED} from commit {left} on"
    )


def main() -> None:
    """Play rounds, or be one of the processes; exit with 1 if any went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.table", description=__doc__)
    parser.add_argument("--seed", type=int, help="play the round of this seed")
    parser.add_argument("--runs", type=int, default=1, help="or so many new ones")
    parser.add_argument("--be", choices=KILLS, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be:
        store = Store(location_of(str(given.directory / "table")))
        is_writer = given.be in WRITERS
        write(store, given.be) if is_writer else look_after(store, given.be, given.directory / "end")
        return
    seeds = seeds_of(given.seed, given.runs)
    kills, failed = in_turn(seeds, play)
    print(f"{len(seeds)} rounds, {sum(kills)} kills, failed: {failed or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
