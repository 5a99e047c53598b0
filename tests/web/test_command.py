"""The command ``otel-rollout view`` ends well, and explains what it cannot do."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import run
from tests.table.generated_table import Shape
from tests.table.tables import generated, root, written
from tests.waiting import wait_for
from tests.web.served import Served, hrefs


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "table"
    written(path, [root("1")])
    return path


def test_ctrl_c_ends_in_one_line(table: Path, tmp_path: Path) -> None:
    """The output is the address, how to end, and that it has ended."""
    with Served(table, tmp_path) as server:
        assert server.get("/").status == 200
        assert server.end() == 0
        assert server.output.splitlines() == [
            f"{table} at {server.address}/",
            "End with Ctrl-C.",
            "",
            "The server has ended.",
        ]


def test_ctrl_c_ends_while_a_page_is_computed(tmp_path: Path) -> None:
    """The engine that computes for a page does not turn the end into a crash."""
    generated(tmp_path / "table", Shape(trajectories=8_000))
    with Served(tmp_path / "table", tmp_path) as server:
        (run_page,) = hrefs(server.get("/"), "/run?")
        before = cpu_seconds(server.process.pid)
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", run_page.replace("/run?", "/health?"))
        wait_for(lambda: cpu_seconds(server.process.pid) > before + 0.2, 60, "the engine computes")
        assert server.end() == 0
        connection.close()


def cpu_seconds(pid: int) -> float:
    """Return how long a process has computed."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def test_named_run_is_the_first_page(table: Path, tmp_path: Path) -> None:
    """``--run`` takes a run's id or experiment, and addresses without a run are of that run."""
    with Served(table, tmp_path, "--run", "first") as server:
        assert server.first_page == "/run?run=run-1&project=project&experiment=first"
        assert "1/7/0" in server.get("/trajectories").text


def test_unknown_run_is_one_line(table: Path) -> None:
    """The sentence names the runs that there are."""
    printed = run("view", "--from", table, "--run", "run-2", "--port", 0, code=2)
    assert printed == "There is no run 'run-2'. Did you mean 'run-1'? Runs: first · run-1.\n"


def test_taken_port_is_one_line(table: Path) -> None:
    """The sentence says what to do."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        printed = run("view", "--from", table, "--port", port, code=2)
    reason = f"Port {port} of 127.0.0.1 cannot be used: Address already in use."
    assert printed == f"{reason} Name another one with --port, or 0 for a free one.\n"


def test_port_beyond_all_is_one_line(table: Path) -> None:
    """A number that is no port is refused."""
    printed = run("view", "--from", table, "--port", 70000, code=2)
    assert "Port 70000 of 127.0.0.1 cannot be used: a port is a number from 0 to 65535. Name" in printed


def test_missing_source_is_one_line(tmp_path: Path) -> None:
    """A path without spans is explained as for ``list``."""
    assert "There is no " in run("view", "--from", tmp_path / "none", code=2)


def test_missing_packages_are_one_line(table: Path) -> None:
    """Without the extra the command says what to install, before it reads anything."""
    hidden = (
        "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
        "import importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, package=None: "
        "None if name in ('starlette', 'uvicorn') else found(name, package)\n"
        "from otel_rollout.cli import app; app()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", hidden, "view", "--from", str(table)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr == "The pages need starlette and uvicorn: pip install 'otel-rollout[view]'\n"
