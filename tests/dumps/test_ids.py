"""Trajectories and runs keep their ids in each dump that holds them, and have none of another's."""

import json
import re
import shutil

import pytest

from tests.cli.command import run_here
from tests.dumps.reading import OpenedDump, verl_line, write_lines


@pytest.fixture
def seeds(tmp_path):
    """Two runs in folders of one name, with the same identities and other replies."""
    for seed in (1, 2):
        lines = [verl_line(number, output=f"seed {seed}", uid=f"u{seed}_{number}_0") for number in (0, 1)]
        write_lines(tmp_path / f"seed{seed}/grpo/rollouts/1.jsonl", lines)
    return tmp_path


def ids(found: OpenedDump) -> list[str]:
    """Return the trace ids of an opened dump."""
    return [row["trace_id"] for row in found.trajectories()]


def test_runs_whose_folders_have_one_name_are_two(seeds, opened):
    """Opened together, each is a run with the end of its path that tells them apart; no identity repeats."""
    together = opened(seeds)
    runs = {(row["run_id"], row["experiment"]) for row in together.trajectories()}
    assert {experiment for _, experiment in runs} == {"seed1/grpo", "seed2/grpo"}
    assert len(together.remarks) == 1
    alone = [row for seed in (1, 2) for row in opened(seeds / f"seed{seed}").trajectories()]
    assert {row["run_id"] for row in alone} == {run_id for run_id, _ in runs}
    assert {row["experiment"] for row in alone} == {"grpo"}
    assert {row["trace_id"] for row in alone} == set(ids(together))


@pytest.mark.parametrize("command", ["report", "health"])
def test_a_command_about_one_run_says_that_there_are_others(seeds, tmp_path, monkeypatch, command):
    """It names them as --run takes them; when a run was chosen, there is nothing to say."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    both = seeds / "seed*"
    told = run_here(command, "--from", both)
    other = re.search(r" · one of 2 runs; others: --run (verl/grpo-\w+)$", told, re.MULTILINE)[1]
    assert told.count(other) == 1
    chosen = run_here(command, "--from", both, "--run", other)
    assert other in chosen
    assert "2 runs" not in chosen


def test_each_dump_is_imported_once(seeds, tmp_path, monkeypatch):
    """A second run of one name is imported; a copy, a renamed one and what was there before are not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(tmp_path / "table"))
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        assert "4 spans imported" in imported(seeds / f"seed{seed}/grpo/rollouts")
        assert "0 spans imported" in imported(seeds / f"seed{seed}")
    copy = shutil.copytree(seeds / "seed1/grpo", seeds / "elsewhere/renamed")
    assert "0 spans imported" in imported(copy)
    with (copy / "rollouts/1.jsonl").open("a") as file:
        file.write(json.dumps(verl_line(3)) + "\n")
    write_lines(copy / "rollouts/2.jsonl", [verl_line(number, step=2) for number in (0, 1, 0)])
    told = imported(copy)
    assert "8 spans imported" in told
    assert "1 trajectory of renamed with an identity that another has: each is shown." in told


def imported(path):
    """Return what an import into the table says."""
    return run_here("import", path, "--to", "delta")


def test_ids_do_not_depend_on_where_the_files_are(tmp_path, opened):
    """The same dump below another path, in a folder or alone, gives the same trajectories."""
    for place in ("here", "there"):
        write_lines(tmp_path / place / "run/rollouts/1.jsonl", [verl_line(), verl_line(1)])
    (tmp_path / "there").rename(tmp_path / "moved")
    paths = (tmp_path / "here/run", tmp_path / "moved/run/rollouts/1.jsonl", tmp_path / "moved")
    found = [set(ids(opened(path))) for path in paths]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 2


def test_equal_records_of_a_file_are_each_a_trajectory(tmp_path, opened):
    """Two rollouts with the same words are two, and keep their ids when the file grows."""
    path = write_lines(tmp_path / "1.jsonl", (lines := [verl_line(number) for number in (0, 1, 0)]))
    first = ids(opened(path))
    assert len(set(first)) == 3
    write_lines(path, [*lines, *lines])
    assert set(first) < set(ids(opened(path)))


def test_records_without_a_step_differ_by_that_of_their_files(tmp_path, opened):
    """The first records of two files may be equal where the file's name alone tells the step."""
    line = {"content": [["q", "a"]], "rewards": [1.0], "idx": 0}
    for step in (1, 2):
        write_lines(tmp_path / f"run/train_data_step{step}.jsonl", [line])
    found = opened(tmp_path / "run")
    assert [row["step"] for row in found.trajectories()] == [1, 2]
    assert len(set(ids(found))) == 2


def test_a_trajectory_that_grows_stays_the_same(tmp_path, opened):
    """A further piece of verl's, and a further step of an agent that runs, are of the same trajectory."""
    pieces = [verl_line(output=f"piece {number}", uid=f"g_0_{number}") for number in range(2)]
    step = {"source": "agent", "message": "hi"}
    document = {"schema_version": "ATIF-v1.6", "session_id": "s", "agent": {"name": "a"}}
    found = []
    for length in (1, 2):
        verl = write_lines(tmp_path / "run/1.jsonl", pieces[:length])
        atif = write_lines(tmp_path / "job/trajectory.json", [{**document, "steps": [step] * length}])
        found.append(
            [(row["trace_id"], row["turns"]) for of in (verl, atif) for row in opened(of).trajectories()]
        )
    for (before, one), (after, two) in zip(*found, strict=True):
        assert (before, one, two) == (after, 1, 2)
