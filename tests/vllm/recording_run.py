"""A run that records in this process, with a receiver at a fixed address for an engine that outlives it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout.account.report import Report
from otel_rollout.record.recording.state import state
from otel_rollout.spool import layout
from otel_rollout.spool.receiver_files import ReceiverCounts, is_receiving, read_counts
from tests.fresh_process import fresh_process
from tests.spool_reader import Recorded, read_directory
from tests.waiting import wait_for

TOKEN = "the-token-of-the-tests-with-vllm"


@dataclass(frozen=True)
class Run:
    """A recording run.

    Attributes:
        spool: its spool directory.
        child_environment: variables with which an engine sends its spans here.
    """

    spool: Path
    child_environment: dict[str, str]

    @property
    def node_dir(self) -> Path:
        """The run's node directory."""
        return layout.node_directories(self.spool)[0]

    def recorded(self) -> list[Recorded]:
        """Return the spans that are recorded so far, in this process and by the receiver."""
        active = state.runtime
        assert active is None or active.writer.flush(10)
        return read_directory(self.spool)

    def wait(self, condition: Callable[[list[Recorded]], object], what: str) -> list[Recorded]:
        """Wait until the recorded spans fulfil a condition, and return them."""
        found: list[Recorded] = []

        def is_true() -> bool:
            found[:] = self.recorded()
            return bool(condition(found))

        wait_for(is_true, what=what)
        return found

    def received(self) -> ReceiverCounts:
        """Return the receiver's counts."""
        return wait_for(lambda: read_counts(self.node_dir), what="the receiver's counts")

    def finish(self) -> Report:
        """End the run; return its delivery report."""
        return otel_rollout.shutdown(timeout=60)


@contextmanager
def recording_run(spool: Path, port: int, **variables: str) -> Iterator[Run]:
    """Record in this process; the receiver listens at a port until the end of the block.

    Args:
        spool: the run's spool directory.
        port: the receiver's port.
        **variables: further settings.
    """
    settings = {
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
        "OTEL_ROLLOUT_KEEP": "true",
        "OTEL_ROLLOUT_RECEIVE": f"127.0.0.1:{port}",
        "OTEL_ROLLOUT_RECEIVE_TOKEN": TOKEN,
        **variables,
    }
    with pytest.MonkeyPatch.context() as patch, fresh_process():
        for name, value in settings.items():
            patch.setenv(name, value)
        otel_rollout.configure()
        otel_rollout.instrument()  # a program does this when it imports the package
        run = Run(spool, otel_rollout.child_environment())
        try:
            yield run
        finally:
            otel_rollout.shutdown(timeout=60)
            _end_receiver(run.node_dir)


def _end_receiver(node_dir: Path) -> None:
    """End the receiver now: it would keep its port for ten seconds after the run."""
    inode = (node_dir / "receiver.lock").stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "FLOCK" in fields and "WRITE" in fields and fields[5].rpartition(":")[2] == str(inode):
            os.kill(int(fields[4]), signal.SIGTERM)
    wait_for(lambda: not is_receiving(node_dir), what="the receiver's end")
