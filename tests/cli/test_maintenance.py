"""`otel-rollout table compact` and `table prune` do what they say, or say in one line why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from otel_rollout.cli import app
from otel_rollout.table.lease import Lease
from otel_rollout.table.store import Store
from tests.table.tables import all_rows, appended_rows, written


def run(*arguments: object, code: int = 0) -> Result:
    ran = CliRunner().invoke(app, ["table", *map(str, arguments)], env={"COLUMNS": "200"})
    assert ran.exit_code == code, ran.output
    return ran


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return written(tmp_path / "table", appended_rows("a", 1, 3), appended_rows("b", 2, 2))


def test_compact_says_what_it_did(store: Store) -> None:
    """Files and bytes before and after."""
    before = all_rows(store.location.uri)
    printed = run("compact", store.location.uri).output.splitlines()
    assert printed[0] == "2 files became 1"
    assert printed[-1].startswith("2 files (")
    assert ") became 1 (" in printed[-1]
    assert printed[-1].endswith("; 0 files of earlier versions were removed.")
    assert (
        "2 files of earlier versions were removed"
        in run("compact", store.location.uri, "--retention", "0h").output
    )
    assert all_rows(store.location.uri) == before


def test_prune_counts_one_trajectory_in_the_singular(tmp_path: Path) -> None:
    """One is no plural."""
    store = written(tmp_path / "table", appended_rows("a", 1, 1), appended_rows("b", 2, 2))
    printed = run("prune", store.location.uri, "--runs", "run-a").output
    assert "Would remove 1 trajectory (1 row, " in printed


def test_prune_first_shows_what_would_go(store: Store) -> None:
    """A row per run; only `--yes` removes it."""
    before = all_rows(store.location.uri)
    printed = run("prune", store.location.uri, "--runs", "run-a").output
    assert "│ run-a  │          1 │         1 │     1 │            3 │    3 │ 2026-01-01 00:00 │" in printed
    assert "run-b" not in printed
    assert "Would remove 3 trajectories (3 rows, " in printed
    assert "and leave 2 trajectories (2 rows, " in printed
    assert all_rows(store.location.uri) == before
    assert (
        "Removed 3 trajectories (3 rows, "
        in run("prune", store.location.uri, "--runs", "run-a", "--yes").output
    )
    assert {each["run_id"] for each in all_rows(store.location.uri)} == {"run-b"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--older-than", "1d"), "Would remove 5 trajectories"),
        (("--older-than", "4000w"), "Nothing to remove"),
        (("--max-size", "1kB"), "Would remove 5 trajectories"),
        (("--max-size", "1.5 GiB"), "Nothing to remove"),
    ],
)
def test_prune_by_age_and_size(store: Store, options: tuple[str, str], words: str) -> None:
    """Hours, days or weeks; bytes with a unit."""
    assert words in run("prune", store.location.uri, *options).output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("prune", "TABLE"), "Name one of --older-than, --runs and --max-size."),
        (("prune", "TABLE", "--runs", "a", "--max-size", "1GB"), "Name one of "),
        (("prune", "TABLE", "--runs", " , "), "--runs names no run: give run ids, separated by commas."),
        (("prune", "TABLE", "--runs", "run-c"), "There is no run 'run-c' in the table. Did you mean"),
        (("prune", "TABLE", "--older-than", "soon"), "--older-than 'soon' cannot be read: write hours, days"),
        (("prune", "TABLE", "--max-size", "10"), "--max-size '10' cannot be read: write a number and a unit"),
        (("compact", "TABLE", "--retention", "-1h"), "--retention '-1h' cannot be read"),
        (("compact", "TABLE", "--retention", "9999999w"), "--retention '9999999w' cannot be read"),
        (("compact", "TABLE/none"), "There is no table at "),
        (("compact",), "There is no table at ./rollouts: name the table."),
        (("compact", "s3://"), "the table's address is 's3://'; expected a directory"),
    ],
)
def test_mistake_is_one_line(
    store: Store, arguments: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says what is expected; nothing is done."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTEL_ROLLOUT_DELTA_URI", raising=False)
    before = all_rows(store.location.uri)
    given = [each.replace("TABLE", store.location.uri) for each in arguments]
    printed = run(*given, code=2).output
    assert printed.startswith(sentence)
    assert printed.count("\n") == 1
    assert all_rows(store.location.uri) == before


def test_table_of_the_environment_is_meant(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument, it is the one that forwarders write."""
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", store.location.uri)
    assert "2 files became 1" in run("compact").output


def test_busy_table_is_named(store: Store) -> None:
    """Another process compacts it."""
    Lease.acquire(store)
    for command in (("compact",), ("prune", "--runs", "run-a", "--yes")):
        printed = run(command[0], store.location.uri, *command[1:], code=2).output
        assert "is being compacted or pruned by process " in printed
        assert printed.count("\n") == 1
