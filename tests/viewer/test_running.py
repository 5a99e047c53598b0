"""Running trajectories of a spool are listed, also those in which nothing has ended."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rollout.base import semconv
from otel_rollout.look.sources.private_table import fill
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout.otlp import evaluations
from otel_rollout.table.location import location_of
from otel_rollout.table.store import Store
from tests.contracts.test_outcome import line
from tests.viewer.conftest import run
from tests.waiting import wait_for

PROGRAM = [sys.executable, "-m", "tests.programs.run_trajectories"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a process whose trajectories 1/3/1 and 1/3/2 run until it gets a line."""
    started = subprocess.Popen(
        [*PROGRAM, str(tmp_path / "spool")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with started as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "they run\n"
        yield process
        process.kill()


def listed(spool: Path) -> dict[str, tuple[str, str]]:
    """Map the paths in `otel-rollout list` to state and reward; each is there once."""
    rows = list(csv.DictReader(io.StringIO(run("list", "--from", spool, "--format", "csv"))))
    found = {row["path"]: (row["state"], row["reward"]) for row in rows}
    assert len(found) == len(rows)
    return found


def shown(spool: Path) -> dict[str, tuple[str, str]]:
    """Map the paths in `otel-rollout show` to state and reward."""
    printed = run("show", "--from", spool)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    return {path: (state, reward) for path, _, reward, state, *_ in rows}


@pytest.mark.parametrize("list_of", [listed, shown])
def test_running_trajectories_are_listed_until_they_end(
    tmp_path: Path, process: subprocess.Popen[str], list_of: object
) -> None:
    """Each is listed once, with its own name and the score that names it."""
    assert callable(list_of)
    running = {"1/3/0": ("ok", ""), "1/3/1": ("running", ""), "1/3/2": ("running", "0.5")}
    wait_for(lambda: list_of(tmp_path / "spool") == running, what="the recorded score on disk")
    process.communicate("\n", timeout=60)
    assert list_of(tmp_path / "spool") == {path: ("ok", reward) for path, (_, reward) in running.items()}


def test_trajectory_without_a_root_runs_wherever_the_trainer_may_name_others(tmp_path: Path) -> None:
    """Of the newest step that it has named, scores may follow while any runs: whoever is asked says so."""
    identities = [
        {"rollout.step": step, "rollout.sample_index": "7", "rollout.rollout_n": n, "rollout.validate": False}
        for step, n in ((1, 0), (1, 1), (2, 0))
    ]
    named = {**identities[1], **evaluations.attributes_of("trained", True, None, semconv.ORIGIN_IDENTITY)}
    recorded = [
        line("a" * 16, "", 0, identities[0], "1" * 32),
        line("b" * 16, "", 0, identities[1], "2" * 32),
        line("c" * 16, "", 0, named, "3" * 32),
    ]
    for number, of_running in enumerate(([], [line("e" * 16, "d" * 16, 0, identities[2], "4" * 32)])):
        spool, table = tmp_path / f"{number}.jsonl", tmp_path / f"table-{number}"
        lines = [each.replace('": ', '":') for each in (*recorded, *of_running)]
        spool.write_text("\n".join(lines))
        fill(Store(location_of(str(table))), SpoolSource(spool).every_span())
        for source in (spool, table):
            printed = run("show", "1/7/0", "--from", source)
            assert ("not named by the trainer" in printed) is not bool(of_running)


def test_running_trajectory_is_shown_and_counted(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    """By its name, in its group and in its step."""
    spool = tmp_path / "spool"
    for options in ([], ["--run", "e"]):
        words = " ".join(run("show", "1/3/2", "--from", spool, *options).split())
        assert words.startswith("1/3/2 running")
        assert "took not ended" in words
    assert "1/3/2" in run("show", "--from", spool, "--run", "e")
    assert "siblings 3, 2 running" in " ".join(run("group", "1/3", "--from", spool).split())
    assert "2 of 3 trajectories still run" in run("timeline", "--from", spool)
    (steps,) = csv.DictReader(io.StringIO(run("steps", "--from", spool, "--format", "csv")))
    assert (steps["trajectories"], steps["running"], steps["failed"]) == ("3", "2", "0")


def test_trajectory_of_a_dead_process_does_not_run(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    """It is not listed until a forwarder has ended it as an error."""
    wait_for(
        lambda: shown(tmp_path / "spool")["1/3/2"] == ("running", "0.5"), what="the recorded score on disk"
    )
    process.kill()
    process.wait()

    def found() -> tuple[str, str]:
        trajectory = shown(tmp_path / "spool").get("1/3/2", ("gone", ""))
        assert trajectory[0] != "running"
        return trajectory

    wait_for(lambda: found() == ("error", "0.5"), what="the end")
    assert listed(tmp_path / "spool")["1/3/2"] == ("error", "0.5")
