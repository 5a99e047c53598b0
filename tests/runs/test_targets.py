"""Test which run a process records, and to which target a run is delivered."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.spool import layout
from tests.forwarders import wait_for_end
from tests.runs.program import ask, begin
from tests.waiting import wait_for

A, B = "parent.jsonl", "child.jsonl"


@pytest.fixture
def started(test_exporters: None, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts :mod:`tests.runs.program` with further variables."""
    programs: list[subprocess.Popen[str]] = []

    def start(**variables: str) -> subprocess.Popen[str]:
        programs.append(begin({**os.environ, **variables}))
        return programs[-1]

    yield start
    for program in programs:
        program.communicate(timeout=120)
        assert program.returncode == 0


def operations(path: Path) -> list[str]:
    """Return the sorted names of the operations in a file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(json.loads(line)[1] for line in lines if json.loads(line)[1] != "rollout_trace")


def to(path: Path, **further: Any) -> dict[str, Any]:
    return {"exporters": {"test-file": {"path": str(path)}}, **further}


@pytest.mark.parametrize("first", ["parent", "child"])
def test_child_that_configures_another_target_records_a_run_of_its_own(
    started: Any, tmp_path: Path, first: str
) -> None:
    """Each process's spans go to its own run and target, in any order of recording."""
    parent = started()
    of_parent = ask(parent, "configure", to(tmp_path / A))
    ask(parent, "start", {})
    of_child = ask(parent, "child", "configure", to(tmp_path / B))
    assert of_child != of_parent
    commands = {"parent": ["record", "of parent"], "child": ["child", "record", "of child"]}
    for who in (first, *(commands.keys() - {first})):
        assert ask(parent, *commands[who])
    assert ask(parent, "child", "shutdown", 30) == {"recorded": 2, "pending": 0, "lost": 0}
    assert ask(parent, "shutdown", 30) == {"recorded": 2, "pending": 0, "lost": 0}
    assert operations(tmp_path / A) == ["of parent"]
    assert operations(tmp_path / B) == ["of child"]


@pytest.mark.parametrize(
    ("arguments", "joins"),
    [
        ({}, True),
        ({"exporters": "test-file"}, True),
        ({"project_name": "project", "value_limit": 1000}, True),
        ({"project_name": "another"}, False),
        ({"exporters": ["test-file", "console"]}, False),
        ({"run_id": "another"}, False),
    ],
)
def test_child_joins_unless_it_names_another_target(
    started: Any, tmp_path: Path, arguments: dict[str, Any], joins: bool
) -> None:
    """A child joins with its parent's target or none; otherwise it founds a run."""
    parent = started()
    run = ask(parent, "configure", to(tmp_path / A, project_name="project"))
    ask(parent, "start", {})
    assert (ask(parent, "child", "configure", arguments) == run) is joins


@pytest.mark.parametrize("first", ["parent", "child"])
def test_child_with_another_variable_records_a_run_of_its_own(
    started: Any, tmp_path: Path, first: str
) -> None:
    """A variable that a child changed counts, also if variables set up the run."""
    parent = started(OTEL_TRACES_EXPORTER="test-file", OTEL_TEST_FILE=str(tmp_path / A))
    ask(parent, "start", {"OTEL_TEST_FILE": str(tmp_path / B)})
    commands = {"parent": ["record", "of parent"], "child": ["child", "record", "of child"]}
    for who in (first, *(commands.keys() - {first})):
        assert ask(parent, *commands[who])
    assert ask(parent, "child", "run") != ask(parent, "run")
    assert ask(parent, "child", "shutdown", 30)["recorded"] == 2
    assert ask(parent, "shutdown", 30)["recorded"] == 2
    assert operations(tmp_path / A) == ["of parent"]
    assert operations(tmp_path / B) == ["of child"]


def test_changed_variable_counts_over_an_inherited_option(started: Any, tmp_path: Path) -> None:
    """A child's MLFLOW_TRACKING_URI takes precedence over its parent's configure()."""
    targets = [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]
    parent = started()
    ask(parent, "configure", {"exporters": {"mlflow": {"tracking_uri": targets[0]}}})
    ask(parent, "start", {"MLFLOW_TRACKING_URI": targets[1]})
    trace_of_child = ask(parent, "child", "record", "of child")
    trace_of_parent = ask(parent, "record", "of parent")
    assert ask(parent, "child", "shutdown", 90)["pending"] == 0
    assert ask(parent, "shutdown", 90)["pending"] == 0
    for name, trace in (("a", trace_of_parent), ("b", trace_of_child)):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database:
            stored = database.execute("SELECT request_id FROM trace_info").fetchall()
        assert stored == [(f"tr-{trace}",)]


def test_siblings_that_name_the_same_target_share_a_run(started: Any, tmp_path: Path) -> None:
    """Workers with one target that their parent does not have share a run."""
    parent = started()
    ask(parent, "configure", to(tmp_path / A))
    runs = set()
    for _ in range(3):
        ask(parent, "start", {})
        runs.add(ask(parent, "child", "configure", to(tmp_path / B)))
    assert len(runs) == 1


def test_children_join_the_own_run_of_their_parent(started: Any, tmp_path: Path) -> None:
    """A child that records a run of its own publishes that run to its children."""
    parent = started()
    ask(parent, "configure", to(tmp_path / A))
    ask(parent, "start", {})
    own = ask(parent, "child", "configure", to(tmp_path / B))
    ask(parent, "child", "start", {})
    assert ask(parent, "child", "child", "run") == own


@pytest.mark.parametrize("switch", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}])
def test_variables_switch_a_child_off(started: Any, tmp_path: Path, switch: dict[str, str]) -> None:
    """``none`` and OTEL_SDK_DISABLED take precedence over configure()."""
    parent = started()
    ask(parent, "configure", to(tmp_path / A))
    ask(parent, "start", switch)
    assert ask(parent, "child", "record", "of child") is None
    ask(parent, "child", "configure", to(tmp_path / A))
    assert ask(parent, "child", "record", "of child") is None
    assert ask(parent, "record", "of parent")
    assert ask(parent, "shutdown", 30)["recorded"] == 2


def test_child_with_a_scrubbed_environment_delivers_to_its_parents_target(
    started: Any, tmp_path: Path
) -> None:
    """The child inherits the run's target, and passes it to the forwarder it starts."""
    parent = started(OTEL_TRACES_EXPORTER="test-file", OTEL_TEST_FILE=str(tmp_path / A))
    ask(parent, "start", {"OTEL_TEST_FILE": None, "OTEL_TRACES_EXPORTER": None})
    assert ask(parent, "child", "record", "of child")
    wait_for(lambda: operations(tmp_path / A) == ["of child"], what="delivery by the child's forwarder")
    ask(parent, "record", "of parent")
    assert ask(parent, "shutdown", 30) == {"recorded": 4, "pending": 0, "lost": 0}
    assert operations(tmp_path / A) == ["of child", "of parent"]


def test_target_that_a_program_names_after_its_imports_is_the_runs(started: Any, tmp_path: Path) -> None:
    """A variable counts if it is set before recording, as by ``load_dotenv()``."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    parent = started(OTEL_TRACES_EXPORTER="mlflow")
    ask(parent, "set", "MLFLOW_TRACKING_URI", uri)
    ask(parent, "start", {})
    run = ask(parent, "run")
    assert ask(parent, "child", "record", "of child")
    assert ask(parent, "child", "run") == run
    assert ask(parent, "record", "of parent")
    assert ask(parent, "shutdown", 90) == {"recorded": 4, "pending": 0, "lost": 0}


def test_experiment_that_mlflows_client_sets_does_not_part_processes(started: Any, tmp_path: Path) -> None:
    """``mlflow.set_experiment()`` sets a variable; children stay in the run."""
    parent = started(OTEL_TRACES_EXPORTER="mlflow", MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db")
    ask(parent, "start", {"MLFLOW_EXPERIMENT_ID": "7"})
    assert ask(parent, "child", "run") == ask(parent, "run")


def test_programs_with_one_run_id_and_two_targets_record_two_runs(started: Any, tmp_path: Path) -> None:
    """A program with another target than the run's directory records another run."""
    programs = [
        started(
            OTEL_TRACES_EXPORTER="test-file", OTEL_ROLLOUT_RUN_ID="r", OTEL_TEST_FILE=str(tmp_path / name)
        )
        for name in (A, B)
    ]
    for number, program in enumerate(programs):
        ask(program, "record", f"op {number}")
    assert [ask(program, "run") == "r" for program in programs] == [True, False]
    for program in programs:
        assert ask(program, "shutdown", 30)["recorded"] == 2
    assert operations(tmp_path / A) == ["op 0"]
    assert operations(tmp_path / B) == ["op 1"]


def test_no_credential_lies_in_the_spool(started: Any, tmp_path: Path) -> None:
    """Neither forwarder writes a token, or the user in a target's URL, to the spool."""
    secrets = {"MLFLOW_TRACKING_TOKEN": "planted-1", "OTEL_EXPORTER_OTLP_HEADERS": "a=planted-2"}
    parent = started(
        OTEL_TRACES_EXPORTER="test-file", OTEL_TEST_URL="http://me:planted-3@host",
        OTEL_TEST_FILE=str(tmp_path / A), **secrets,
    )  # fmt: skip
    ask(parent, "record", "op")
    ask(parent, "shutdown", 30)
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    wait_for_end(node_dir)
    files = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"planted" in path.read_bytes()]


@pytest.mark.parametrize("changed", [None, "false"])
def test_run_is_delivered_with_the_settings_of_its_founder(
    started: Any, tmp_path: Path, changed: str | None
) -> None:
    """A child that records first has another OTEL_ROLLOUT_KEEP, which has no effect."""
    parent = started(
        OTEL_TRACES_EXPORTER="test-file", OTEL_TEST_FILE=str(tmp_path / A), OTEL_ROLLOUT_KEEP="true"
    )
    ask(parent, "start", {"OTEL_ROLLOUT_KEEP": changed})
    ask(parent, "child", "record", "of child")
    assert ask(parent, "child", "shutdown", 30)["pending"] == 0
    ask(parent, "record", "of parent")
    assert ask(parent, "shutdown", 30) == {"recorded": 4, "pending": 0, "lost": 0}
    wait_for(lambda: len(list(tmp_path.rglob("archive/*.zst"))) == 2, what="both segments in the archive")


def test_child_that_names_the_same_target_by_an_option_joins(started: Any, tmp_path: Path) -> None:
    """A child may name in configure() the target that its parent has in a variable."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    parent = started(OTEL_TRACES_EXPORTER="mlflow", MLFLOW_TRACKING_URI=uri)
    assert ask(parent, "record", "of parent")
    ask(parent, "start", {})
    ask(parent, "child", "configure", {"exporters": {"mlflow": {"tracking_uri": uri}}})
    assert ask(parent, "child", "record", "of child")
    assert ask(parent, "child", "run") == ask(parent, "run")
