"""Check that tables stay exact while processes write, compact, prune and die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of
from otel_rollout.table.store import Store
from tests.table.programs.replace_files import POINTS
from tests.table.tables import all_rows, appended_rows

DEADLINE = 240
"""Seconds for one program."""


class Program:
    """A program of the tests in a process of its own, with its output in a file.

    Args:
        directory: for the file.
        name: the program's name.
        arguments: its arguments.
    """

    def __init__(self, directory: Path, name: str, *arguments: object) -> None:
        command = [sys.executable, "-m", f"tests.table.programs.{name}", *map(str, arguments)]
        descriptor, path = tempfile.mkstemp(dir=directory)
        self._output = Path(path)
        self.process = subprocess.Popen(command, stdout=descriptor, stderr=descriptor)
        os.close(descriptor)

    def ended(self) -> tuple[int, str]:
        """Return how the program ended, and what it printed."""
        try:
            return self.process.wait(DEADLINE), self._output.read_text()
        finally:
            self.process.kill()
            self.process.wait()


def filled(uri: Path | str, writers: Iterable[str], commits: int = 3) -> Store:
    """Write a table with small commits of writers, each of which is a run."""
    store = Store(location_of(str(uri)))
    for writer in writers:
        append(store, writer, range(commits))
    return store


def append(store: Store, writers: str, commits: Iterable[int]) -> None:
    """Append commits; each has rows of all writers, whose names are letters."""
    for commit in commits:
        rows = [each for writer in writers for each in appended_rows(writer, commit, 4)]
        store.append([batch_of(rows)], writers, commit)


def live_files(uri: Path | str) -> set[str]:
    """Return the files of a table's newest version."""
    return set(DeltaTable(str(uri)).get_add_actions().column("path").to_pylist())


def kill_at_every_point(uri: str, directory: Path, tmp_path: Path, runs: tuple[str, ...] = ()) -> None:
    """Kill a compaction, or a pruning of runs, at each point in turn, and check the rows after each.

    Args:
        uri: the table, which does not exist yet.
        directory: where the store keeps the table's files.
        tmp_path: for output.
        runs: the runs to prune: ``run-a`` or ``run-b``.
    """
    store = filled(uri, ["ab"])
    for commit, point in enumerate(POINTS, 3):
        append(store, "ab", [commit])
        before = all_rows(uri)
        code, printed = Program(tmp_path, "replace_files", uri, directory, 1, point, *runs).ended()
        assert code == -signal.SIGKILL, f"{point}: {printed}"
        remaining = [each for each in before if each["run_id"] not in runs]
        assert all_rows(uri) in ([before, remaining] if runs else [before]), point
    append(store, "ab", [commit + 1])
    expected = [each for each in all_rows(uri) if each["run_id"] not in runs]
    code, printed = Program(tmp_path, "replace_files", uri, directory, 1, "", *runs).ended()
    assert code == 0, printed
    assert all_rows(uri) == expected
    assert store.committed("ab") == commit + 1
    if not runs:
        assert len(live_files(uri)) == 1


def compact_beside_writers(uri: str, tmp_path: Path, writers: int, commits: int) -> None:
    """Compact in two processes and prune in a third while others write, and check the rows.

    Args:
        uri: the table, which does not exist yet.
        tmp_path: for output.
        writers: number of writers.
        commits: number of each writer's commits.
    """
    stop = tmp_path / "stop"
    filled(uri, "x")
    compactors = [Program(tmp_path, "replace_files", uri, "-", 600, f"until {stop}") for _ in range(2)]
    writing = [Program(tmp_path, "append_rows", uri, number, commits, 5) for number in range(writers)]
    pruner = Program(tmp_path, "replace_files", uri, "-", 600, "", "run-x")
    try:
        results = [program.ended() for program in (*writing, pruner)]
    finally:
        stop.touch()
    results += [compactor.ended() for compactor in compactors]
    assert [code for code, _ in results] == [0] * len(results), results
    expected = [
        row
        for number in range(writers)
        for commit in range(commits)
        for row in appended_rows(str(number), commit, 5)
    ]
    assert_rows(all_rows(uri), expected)
    assert any("became" in printed for _, printed in results)
    assert len(live_files(uri)) < writers * commits


def assert_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Check count, ids and values."""
    assert len(found) == len(expected)
    for each, wanted in zip(found, sorted(expected, key=lambda each: each["trace_id"]), strict=True):
        assert {name: each[name] for name in wanted if name != "start_time"} == {
            name: value for name, value in wanted.items() if name != "start_time"
        }
