"""Plays a schedule with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from otel_rollout import settings_reader
from otel_rollout.record.launch import drain, launcher
from otel_rollout.settings import CONFIG_VARIABLE, Settings
from otel_rollout.spool import layout
from tests.soak import account, job
from tests.soak.schedule import Event, Schedule
from tests.soak.target import Keeper, Relay, Target
from tests.waiting import wait_for

JOB_SECONDS = 120
"""A job that takes longer hangs: its own work takes a few seconds."""
DELIVERY_SECONDS = 600
_STEP = 0.03
_VARIABLE = "OTEL_ROLLOUT_SPOOL_DIR"
_Process = tuple[int, str]


@contextlib.contextmanager
def _disk_of(place: Path, megabytes: int | None) -> Iterator[None]:
    """A real file system of so many megabytes, in memory; or none."""
    if megabytes is None:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}M", "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def can_mount(place: Path) -> bool:
    """Whether a file system can be mounted here."""
    try:
        with _disk_of(place, 1):
            return True
    except (subprocess.CalledProcessError, OSError):
        return False


class Run:
    """One schedule, played in an empty directory of its own.

    Args:
        schedule: what happens.
        directory: an empty one.
        mlflow: address of an MLflow server that is the first target.

    Attributes:
        node_dir: what was recorded; missing when the driver was killed before anything was.
        settings: of the run.
        targets: where it was delivered, by the exporter's name.
        accounts: the writers' own.
        killed: every process that was killed from outside.
        log: what the job's processes said.
    """

    def __init__(self, schedule: Schedule, directory: Path, mlflow: str | None = None) -> None:
        self.schedule = schedule
        self.killed: set[int] = set()
        self.accounts = directory / job.ACCOUNTS
        self.log = directory / "job.log"
        self.targets: dict[str, Target] = {}
        exporters: dict[str, Any] = {}
        for number, (answers, protocol) in enumerate(zip(schedule.answers, schedule.protocols, strict=True)):
            if number == 0 and mlflow:
                relay = Relay(answers, self._kill_forwarders, mlflow.removeprefix("http://"))
                self.targets["mlflow"], exporters["mlflow"] = (
                    relay,
                    {"tracking_uri": relay.url, "timeout": 120},
                )
            else:
                name, keeper = f"test-otlp-{number}", Keeper(answers, self._kill_forwarders)
                options = {"endpoint": f"{keeper.url}/v1/traces", "protocol": protocol, "timeout": 20}
                self.targets[name], exporters[name] = keeper, options
        self._arguments: dict[str, Any] = {
            "exporters": exporters,
            "project_name": directory.name,
            "run_id": f"crash-{schedule.seed}",
            "spool_dir": str(directory / "disk" / "spool"),
            "spool_limit": schedule.spool_limit,
            "keep": True,
            "shutdown_timeout": 5.0,
            "forwarder_linger": 2.0,
        }
        self.settings = Settings(**settings_reader.checked_arguments(self._arguments))
        self.node_dir = layout.node_directory(self.settings.spool_dir, self.settings.run_id, "")
        self._directory = directory
        self._disk = directory / "disk"
        self._timers: list[threading.Timer] = []
        self._started: list[subprocess.Popen[bytes]] = []

    @contextlib.contextmanager
    def played(self) -> Iterator[None]:
        """Play the schedule and have what is pending delivered.

        Inside, all is still there to be looked at.

        Raises:
            AssertionError: when the job, the delivery or a process does not come to its end.
        """
        self.accounts.mkdir()
        self._disk.mkdir()
        plan = {"seed": self.schedule.seed, "arguments": self._arguments}
        (self._directory / job.PLAN).write_text(json.dumps(plan))
        with _disk_of(self._disk, self.schedule.disk_megabytes):
            try:
                self._play()
                yield
            finally:
                self._end()

    def counts(self) -> Counter[str]:
        """How much there was of it.

        Writers that killed themselves are not among the kills.
        """
        return Counter(spans=sum(account.ended(self.accounts).values()), kills=len(self.killed))

    def _play(self) -> None:
        self._start("driver")
        events = list(self.schedule.events)
        deadline = time.monotonic() + JOB_SECONDS
        while (jobs := self._job_processes()) or events:
            assert time.monotonic() < deadline, f"the job hangs: {jobs}"
            ended = account.ended(self.accounts)
            while events and (not jobs or sum(ended.values()) >= events[0].after):
                self._cause(events.pop(0))
            self._kill_who_is_due(ended)
            time.sleep(_STEP)
        for timer in self._timers:
            timer.join()
        for target in self.targets.values():
            target.recover()
        if self.node_dir.exists():
            drain.drain(self.node_dir, self.settings, DELIVERY_SECONDS)
            wait_for(lambda: not self._processes(), 300, "the end of everything of ours")

    def _end(self) -> None:
        """Leave nothing behind."""
        for timer in self._timers:
            timer.cancel()
        for pid, _ in self._processes():
            self._kill(pid)
        for process in self._started:
            process.wait()
        for target in self.targets.values():
            target.close()

    # --- what happens -------------------------------------------------------------------------------------

    def _start(self, role: str, **variables: str) -> None:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.job", str(self._directory), role],
                env={**os.environ, _VARIABLE: str(self.settings.spool_dir), **variables},
                stdout=log,
                stderr=log,
            )
        self._started.append(process)

    def _cause(self, event: Event) -> None:
        config = self._directory / job.CONFIG
        if event.what == "another writer" and config.exists():
            self._start(str(event.number), **{CONFIG_VARIABLE: config.read_text()})
        elif event.what == "kill forwarder":
            self._kill_forwarders()
        elif event.what == "start forwarders" and self.node_dir.exists():
            for _ in range(3):
                launcher.ensure_forwarder(self.node_dir, self.settings)
        elif event.what == "target refuses":
            target = list(self.targets.values())[event.number]
            target.refuse()
            self._later(event.seconds, target.listen)
        elif event.what == "disk is full" and self.schedule.disk_megabytes:
            ballast = self._disk / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
            self._later(event.seconds, lambda: ballast.unlink(missing_ok=True))

    def _later(self, seconds: float, act: Any) -> None:
        timer = threading.Timer(seconds, act)
        timer.start()
        self._timers.append(timer)

    def _kill_who_is_due(self, ended: dict[int, int]) -> None:
        """Kill the writers whose time has come, and those that have nothing left to do."""
        for path in self.accounts.iterdir():
            number, _, pid = map(int, path.name.split("."))
            is_idle = (self._directory / f"{job.IDLE}{pid}").exists()
            if (is_idle or self._is_due(number, ended)) and pid not in self.killed:
                self._kill(pid)

    def _is_due(self, number: int, ended: dict[int, int]) -> bool:
        schedule = self.schedule
        if number == len(schedule.writers):
            return schedule.driver_end == "killed" and sum(ended.values()) >= schedule.driver_killed_after
        after = schedule.writers[number].killed_after
        return after is not None and ended.get(number, 0) >= after

    def _kill_forwarders(self) -> None:
        for pid, command in self._processes():
            if "otel_rollout.forwarder" in command:
                self._kill(pid)

    def _kill(self, pid: int) -> None:
        self.killed.add(pid)
        if self._is_ours(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # --- processes ----------------------------------------------------------------------------------------

    def _job_processes(self) -> list[_Process]:
        return [(pid, command) for pid, command in self._processes() if "tests.soak.job" in command]

    def _processes(self) -> list[_Process]:
        """Every process of this run that there is, with its command line."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [(pid, _command(pid)) for pid in pids if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        return pid != os.getpid() and str(self._directory) in _command(pid)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
