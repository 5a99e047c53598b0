"""Test that the code of docs/recording.md runs, and does what the page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from otel_rollout.record.runs import membership
from tests.waiting import wait_for

PAGE = Path(__file__).parents[2] / "docs" / "recording.md"
SECTION = PAGE.read_text().partition("\n## Notebooks, pytest, Ctrl-C\n")[2].partition("\n## ")[0]
NOTEBOOK, PYTEST, CTRL_C, *_ = SECTION.split("\n### ")[1:]


def code_in(section: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def traces(database: Path) -> int:
    with closing(sqlite3.connect(database)) as opened:
        return int(opened.execute("SELECT count(*) FROM trace_info").fetchone()[0])


def test_cells_may_be_run_again(
    fresh_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each cell runs twice; then all cells run again, as another run."""
    monkeypatch.chdir(tmp_path)
    set_up, work, end = code_in(NOTEBOOK)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in (set_up, set_up, work, set_up, work):
        exec(cell, namespace)
    first = membership.decide().run_id
    exec(end, namespace)
    assert "4 spans recorded; 4 delivered to mlflow" in capsys.readouterr().out
    for cell in (set_up, work, end):
        exec(cell, namespace)
    assert "2 spans recorded; 2 delivered to mlflow" in capsys.readouterr().out
    assert membership.decide().run_id != first
    assert traces(tmp_path / "mlflow.db") == 3


def run_pytest(directory: Path, conftest: str, exporters: str = "") -> str:
    (directory / "conftest.py").write_text(conftest)
    shutil.copy(Path(__file__).parent / "programs" / "recorded_in_test.py", directory / "test_it.py")
    environment = {**os.environ, **({"EXPORTERS": exporters} if exporters else {})}
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "--basetemp", "temp"]
    ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_pytest_with_lines_against_tracing_records_nothing(tmp_path: Path) -> None:
    """The page's first lines switch tracing off, even if tested code configures it."""
    untraced, _ = code_in(PYTEST)
    assert "TRACE None" in run_pytest(tmp_path, untraced, "console")
    assert not (tmp_path / "spool").exists()


def test_pytest_with_fixture_delivers_one_run(tmp_path: Path) -> None:
    """The page's fixture delivers the spans of all tests when the tests end."""
    _, traced = code_in(PYTEST)
    assert re.search(r"TRACE [0-9a-f]{32}", run_pytest(tmp_path, traced))
    (database,) = (tmp_path / "temp").rglob("mlflow.db")
    assert traces(database) == 1


@pytest.mark.parametrize("timeout", ["30", "0"])
def test_ctrl_c_delivers_the_interrupted_trajectory(
    test_exporters: None, tmp_path: Path, timeout: str
) -> None:
    """The trajectory arrives as an error, with or without a wait for delivery."""
    target = tmp_path / "delivered"
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "test-file",
        "OTEL_TEST_FILE": str(target),
        "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": timeout,
    }
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.programs.wait_in_trajectory"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        program.wait(60)

    wait_for(lambda: len(target.read_text().splitlines()) == 2, what="delivery")
    by_name = {name: attributes for _, name, attributes in map(json.loads, target.read_text().splitlines())}
    assert by_name["rollout_trace"]["error.type"] == "KeyboardInterrupt"
