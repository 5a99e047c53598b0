"""Test repeated configure(), and recording after shutdown(), as in a notebook."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.launch import at_exit
from otel_rollout.record.runs import membership
from otel_rollout.settings import CONFIG_VARIABLE
from otel_rollout.spool import layout
from tests.runs.test_targets import operations
from tests.waiting import wait_for


@pytest.fixture
def cell(fresh_process: None, test_exporters: None, tmp_path: Path) -> Callable[..., None]:
    """Return a function that calls configure(); ``to`` names the file for traces."""

    def run(to: str = "a", **arguments: Any) -> None:
        otel_rollout.configure({"test-file": {"path": str(tmp_path / to)}}, **arguments)

    return run


def record(name: str) -> str | None:
    """Record a trajectory with one operation."""
    with rollout_trace_attr(step=1) as trajectory:
        rollout_trace_op(name=name)(len)("x")
    return trajectory.trace_id


def delivered(file: Path) -> list[str]:
    """Return the names of all spans in a file, in order."""
    return [json.loads(line)[1] for line in file.read_text().splitlines()]


def test_configure_with_equal_arguments_continues_the_run(cell: Any, tmp_path: Path) -> None:
    """There is one run, whether the second call comes before or after recording."""
    runs = set()
    for number in range(3):
        cell(project_name="p")
        cell(project_name="p")
        record(f"op {number}")
        runs.add(membership.decide().run_id)
    assert len(runs) == 1
    assert otel_rollout.shutdown(30).recorded == 6
    assert operations(tmp_path / "a") == ["op 0", "op 1", "op 2"]


def test_configure_with_equal_arguments_in_other_forms_continues_the_run(
    cell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path may be a Path or relative, and settings given before may be omitted."""
    monkeypatch.chdir(tmp_path)
    otel_rollout.configure({"test-file": {"path": tmp_path / "a"}}, spool_dir="relative", value_limit=100)
    record("op")
    run = membership.decide().run_id
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "a")}}, spool_dir=Path("relative"))
    otel_rollout.configure(value_limit="100")
    otel_rollout.configure("test-file")
    assert membership.decide().run_id == run


def test_configure_with_another_target_begins_another_run(cell: Any, tmp_path: Path) -> None:
    """Earlier spans go to the first target and later ones to the second, at once."""
    cell("a")
    record("first")
    first = membership.decide().run_id
    cell("b")
    assert membership.decide().run_id != first
    record("second")
    assert otel_rollout.shutdown(30).recorded == 2
    assert operations(tmp_path / "b") == ["second"]
    at_exit.run()
    assert operations(tmp_path / "a") == ["first"]


def test_trajectory_open_when_its_run_ends_arrives_in_that_run(cell: Any, tmp_path: Path) -> None:
    """Its root arrives in its run, and later operations arrive in the next run."""
    cell("a")
    with rollout_trace_attr(step=1):
        rollout_trace_op(name="before")(len)("x")
        cell("b")
        rollout_trace_op(name="after")(len)("x")
    assert otel_rollout.shutdown(30).recorded == 1
    assert wait_for(lambda: len(names := delivered(tmp_path / "a")) == 2 and names)[1] == "rollout_trace"
    assert delivered(tmp_path / "b") == ["after"]


def test_configure_keeps_settings_that_it_does_not_name(cell: Any) -> None:
    """A second call adds to the first call's arguments, before and after recording."""
    cell("a", value_limit=100)
    record("first")
    otel_rollout.configure(experiment_name="second")
    configured = membership.decide()
    assert list(configured.exporters) == ["test-file"]
    assert (configured.value_limit, configured.experiment_name) == (100, "second")


def test_configure_after_shutdown_keeps_no_earlier_argument(
    cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run has only its own arguments, in this process and in children."""
    cell("a", value_limit=100)
    record("first")
    otel_rollout.shutdown(30)
    cell("b")
    assert membership.decide().value_limit != 100
    assert "value_limit" not in json.loads(os.environ[CONFIG_VARIABLE])


def test_span_after_shutdown_begins_another_run_if_variables_switch_tracing_on(
    fresh_process: None, test_exporters: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second run is delivered, and the first run's report does not change."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "test-file")
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "a"))
    record("first")
    first = otel_rollout.shutdown(30)
    assert otel_rollout.status() == first
    record("second")
    assert otel_rollout.shutdown(30).recorded == 2
    assert operations(tmp_path / "a") == ["first", "second"]
    assert len({path.parent for path in layout.node_directories(tmp_path / "spool")}) == 2


def test_span_after_shutdown_of_configured_run_is_dropped_with_one_warning(
    cell: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning says that configure() begins another run."""
    cell("a")
    record("first")
    otel_rollout.shutdown(30)
    with caplog.at_level(logging.WARNING, "otel_rollout"):
        assert [record("lost"), record("lost")] == [None, None]
    (warning,) = caplog.records
    assert "configure() again" in warning.getMessage()
    cell("a")
    assert record("second")


def test_second_run_is_delivered_when_the_program_exits(test_exporters: None, tmp_path: Path) -> None:
    """The exit delivers the second run; later exit handlers begin no third run."""
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "test-file", "OTEL_TEST_FILE": str(tmp_path / "a")}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.programs.second_run_at_exit"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[:2] == ["recorded 1", "again 1"]
    assert ran.stdout.splitlines()[2] == "late None"
    assert len((tmp_path / "a").read_text().splitlines()) == 2


def test_infinite_timeout_reaches_child_processes(cell: Any) -> None:
    """A child process reads the infinity of configure(), although JSON has none."""
    cell("a", shutdown_timeout=float("inf"))
    assert membership.decide().shutdown_timeout == float("inf")
    code = "from otel_rollout.record.runs import membership; print(membership.decide().shutdown_timeout)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "inf\n"


def test_run_recorded_by_children_alone_ends_when_another_begins(cell: Any, tmp_path: Path) -> None:
    """If the driver configures again, earlier spans of workers keep their target."""
    cell("a")
    first = membership.decide().run_id
    subprocess.run([sys.executable, "-m", "tests.programs.record_one_operation"], check=True)
    cell("b")
    assert membership.decide().run_id != first
    assert otel_rollout.shutdown(30).recorded == 0
    at_exit.run()
    assert operations(tmp_path / "a") == ["of child"]
    assert not (tmp_path / "b").exists()


def test_span_in_later_exit_handler_begins_no_run(test_exporters: None, tmp_path: Path) -> None:
    """The span is not recorded, and the last line is about the run that ended."""
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "test-file", "OTEL_TEST_FILE": str(tmp_path / "a")}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.programs.span_in_exit_handler"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (0, "late None\n")
    (line,) = [line for line in ran.stderr.splitlines() if "Ctrl-C" not in line]  # progress, if it takes long
    assert line.startswith("otel-rollout: 1 span delivered")
