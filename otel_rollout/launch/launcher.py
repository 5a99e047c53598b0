"""Seeing to it that a forwarder runs beside training. Imported by training processes: light.

The forwarder is started through a shell that exits at once, in a session of its own: so it is nobody's
child and survives ``ray.kill``, ``ray.shutdown`` and the driver's exit, which take a worker's direct
children along.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from otel_rollout._state import process
from otel_rollout.base.environment import DELIVERY_PREFIXES, access_in, without_credentials
from otel_rollout.configuration import from_founder, to_variable
from otel_rollout.forwarder.lock import SUCCESSOR, ForwarderLock
from otel_rollout.runs.target import is_published, names_target
from otel_rollout.settings import CONFIG_VARIABLE, Settings, given_to_forwarder
from otel_rollout.spool import layout
from otel_rollout.spool.private_files import open_private

_CHECK_INTERVAL = 5.0
_FIRST_CHECKS = 0.5
"""Seconds between checks; more often in the beginning, when a wrong setting is worth knowing soon."""
_SETTLING = 20
"""Number of the more frequent checks."""

_PASSED_VARIABLES = frozenset(
    {
        "ALL_PROXY", "CURL_CA_BUNDLE", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LC_ALL",
        "LD_LIBRARY_PATH", "LOGNAME", "NETRC", "NO_PROXY", "PATH", "PYTHONPATH", "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV",
    }
)  # fmt: skip
"""What the forwarder may see of the environment besides the variables of exporters."""

_logger = logging.getLogger("otel_rollout")


def forwarder_runs(node_dir: Path) -> bool:
    """Whether some process is the forwarder of this directory."""
    election = ForwarderLock(node_dir)
    try:
        return election.is_held()
    finally:
        election.close()


def ensure_forwarder(node_dir: Path, configured: Settings) -> None:
    """Start a forwarder for this directory unless one runs. Takes about 2 ms when it starts one.

    Several processes may do so at once: those forwarders elect one of them and the others exit. One that runs
    gets a successor if it lacks credentials, or other access to targets, that this process has.
    """
    environ = _forwarder_environment(os.environ, configured)
    election = ForwarderLock(node_dir)
    try:
        is_running = election.is_held()
        if is_running:
            may_do_better = _may_do_better(election, node_dir, access_in(environ))
            if not may_do_better or _is_being_succeeded(election, node_dir):
                return
            process.successor_starts.setdefault(node_dir, []).append(time.monotonic())
    finally:
        election.close()
    command = [sys.executable, "-m", "otel_rollout.forwarder", str(node_dir)]
    if is_running:
        command.append(SUCCESSOR)
    with open(node_dir / layout.FORWARDER_LOG, "ab", opener=open_private) as log:
        subprocess.run(  # noqa: S603 - our own interpreter and module
            ["/bin/sh", "-c", '"$@" </dev/null &', "sh", *command],
            cwd="/",  # `python -m` looks for modules here first; and the job's directory may be deleted
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=False,
        )


_MAX_SUCCESSORS = 3
"""Successors that a process starts for a directory at most: others may want the lock as well."""
_SUCCESSION_INTERVAL = 5.0
"""Seconds between them."""


def may_do_better(node_dir: Path, configured: Settings) -> bool:
    """Whether a successor that this process starts could deliver what the present forwarder cannot."""
    election = ForwarderLock(node_dir)
    try:
        return _may_do_better(election, node_dir, access_in(_forwarder_environment(os.environ, configured)))
    finally:
        election.close()


def _may_do_better(election: ForwarderLock, node_dir: Path, access: Mapping[str, str]) -> bool:
    if len(process.successor_starts.get(node_dir, ())) >= _MAX_SUCCESSORS and not _is_being_succeeded(
        election, node_dir
    ):
        return False
    return election.lacks_access(access) or (election.has_other_access(access) and _is_refused(node_dir))


def _is_being_succeeded(election: ForwarderLock, node_dir: Path) -> bool:
    """Whether a successor is on its way: its process starts, or waits for the lock."""
    started = process.successor_starts.get(node_dir, [])
    is_starting = bool(started) and time.monotonic() - started[-1] < _SUCCESSION_INTERVAL
    return is_starting or election.is_requested()


def _is_refused(node_dir: Path) -> bool:
    from otel_rollout.account.ledger import read_ledger
    from otel_rollout.exporting.api import FailureKind

    failures = read_ledger(node_dir).failures.values()
    return any(failure.kind is FailureKind.REFUSED for failure in failures)


def _forwarder_environment(environ: Mapping[str, str], configured: Settings) -> dict[str, str]:
    wanted = [pattern.strip() for pattern in configured.forwarder_variables.split(",")]
    passed = {
        name: value
        for name, value in environ.items()
        if name in _PASSED_VARIABLES
        or name.upper() in _PASSED_VARIABLES
        or name.startswith(DELIVERY_PREFIXES)
        or any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
    }
    # The run's target counts, not what this process's variables name.
    of_run = configured.target_variables
    has_told = bool(of_run) or is_published(environ)
    for name in [name for name in passed if has_told and names_target(name, configured)]:
        if without_credentials(passed[name].strip()) != of_run.get(name):
            del passed[name]
    passed = {**of_run, **passed}
    names = (*given_to_forwarder("starter"), *given_to_forwarder("founder"))
    passed[CONFIG_VARIABLE] = to_variable(
        {name: getattr(configured, name) for name in names} | from_founder(configured.run_id, environ)
    )
    # Where this package was imported from, for trees that are on sys.path but not installed.
    package_root = str(Path(__file__).resolve().parents[2])
    if "site-packages" not in package_root:
        passed["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, passed.get("PYTHONPATH")]))
    passed["MLFLOW_DISABLE_TELEMETRY"] = "true"
    return passed


class Keeper:
    """A thread that keeps a forwarder running and says what stops it from delivering.

    Args:
        node_dir: what the forwarder forwards.
        configured: settings of the run.
        found: makes the node directory, as far as it is not there.
    """

    def __init__(self, node_dir: Path, configured: Settings, found: Callable[[], object]) -> None:
        self._node_dir = node_dir
        self._settings = configured
        self._found = found
        self._reported: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-rollout-keep", daemon=True)

    def start(self) -> None:
        """Begin; the forwarder is started from the thread, not from user code."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the forwarder goes on."""
        self._stop.set()

    def _run(self) -> None:
        checks = 0
        while True:
            try:
                ensure_forwarder(self._node_dir, self._settings)
                self._keep_manifest()
                self._report_problems()
            except Exception as error:  # noqa: BLE001 - the thread must live, and training not notice
                self._say(f"cannot look after the forwarder: {error}")
            checks += 1
            if self._stop.wait(_FIRST_CHECKS if checks < _SETTLING else _CHECK_INTERVAL):
                return

    def _keep_manifest(self) -> None:
        """Write the manifest again that somebody has removed: no command finds a directory without one.

        What cleans up temporary directories removes it first, for it is never written to. Where the journals
        are gone too, the directory is being removed, which is the writer's to deal with.
        """
        if not (self._node_dir / layout.MANIFEST).exists() and layout.journals(self._node_dir):
            self._found()

    def _report_problems(self) -> None:
        from otel_rollout.account.ledger import read_ledger
        from otel_rollout.exporting.api import FailureKind

        ledger = read_ledger(self._node_dir)
        for exporter, failure in ledger.failures.items():
            level = logging.ERROR if failure.kind is FailureKind.REFUSED else logging.WARNING
            self._say(
                f"{exporter} does not take spans at present; they are kept on disk. {failure.message}", level
            )
        for exporter, (run, problem) in ledger.links.items():
            if problem:
                self._say(f"{exporter}: traces are not linked to the run {run}. {problem}")

    def _say(self, message: str, level: int = logging.WARNING) -> None:
        if message not in self._reported and len(self._reported) < 100:
            self._reported.add(message)
            _logger.log(level, "otel-rollout: %s", message)
