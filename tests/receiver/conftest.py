"""Runs with a receiver, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from otel_rollout.spool import layout
from otel_rollout.spool.receiver_files import ReceiverAddress, is_receiving, read_address
from tests.receiver.support import holder_of
from tests.spool_reader import Recorded, read_directory
from tests.waiting import wait_for

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]


class Run:
    """A program that holds trajectories open, with the run's receiver beside it."""

    def __init__(self, spool: Path, trajectories: int, program: str, **variables: str) -> None:
        self.spool = spool
        tracing = ("OTEL_", "MLFLOW_", "WANDB_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(tracing)}
        self.environ = {
            **inherited,
            "OTEL_TRACES_EXPORTER": "spool",
            "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
            "OTEL_ROLLOUT_RECEIVE": "true",
            "OTEL_ROLLOUT_KEEP": "true",
            "PYTHONPATH": str(ROOT),
            **variables,
        }
        self.log = spool.with_suffix(".stderr")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, PROGRAMS / program, str(trajectories)],
                env=self.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.children = [json.loads(self.process.stdout.readline()) for _ in range(trajectories)]

    @property
    def node_dir(self) -> Path:
        """The run's node directory."""
        return layout.node_directories(self.spool)[0]

    @property
    def address(self) -> ReceiverAddress:
        """The receiver's address."""
        found = read_address(self.node_dir)
        assert found is not None
        return found

    def agent_environment(self, trajectory: int = 0) -> dict[str, str]:
        """Return the environment of an agent of a trajectory."""
        return {**self.environ, **self.children[trajectory]}

    def run_agent(self, *arguments: str, trajectory: int = 0, program: str = "sdk_agent.py") -> str:
        """Run an agent of a trajectory to its end, and return what it prints."""
        command = [sys.executable, PROGRAMS / program, *arguments]
        environ = self.agent_environment(trajectory)
        return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout

    def post(self, content: bytes, type_: str = "application/x-protobuf") -> httpx.Response:
        """Send a request to the receiver."""
        address = self.address
        headers = {"authorization": f"Bearer {address.token}", "content-type": type_}
        with httpx.Client(trust_env=False) as client:
            return client.post(f"{address.endpoint}/v1/traces", content=content, headers=headers)

    def receiver_pid(self) -> int:
        """Return the id of the receiver's process."""
        return wait_for(lambda: holder_of(self.node_dir / "receiver.lock"), what="a receiver")

    def kill_receiver(self) -> None:
        """Kill the receiver."""
        os.kill(self.receiver_pid(), signal.SIGKILL)

    def finish(self) -> str:
        """End the trajectories and the program; return its report."""
        out, _ = self.process.communicate("", timeout=120)
        assert self.process.returncode == 0, self.log.read_text()
        return out

    def recorded(self) -> list[Recorded]:
        """Return the spans in the spool."""
        return read_directory(self.node_dir)

    def close(self) -> None:
        """Kill the program if it runs, and wait for the receiver's end."""
        self.process.kill()
        self.process.communicate()
        for node_dir in layout.node_directories(self.spool):
            pid = holder_of(node_dir / "receiver.lock")
            if pid:
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda node_dir=node_dir: not is_receiving(node_dir), what="the receiver's end")


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Return a function that starts a run; its processes end with the test."""
    with ExitStack() as runs:

        def start(
            trajectories: int = 1,
            spool: str = "spool",
            program: str = "hold_trajectories.py",
            **variables: str,
        ) -> Run:
            run = Run(tmp_path / spool, trajectories, program, **variables)
            runs.callback(run.close)
            return run

        yield start
