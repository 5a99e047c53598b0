"""Start the forwarder and, if one is wanted, the receiver of OTLP beside training; keep both running.

Training processes import this module, so it imports nothing heavy. A shell starts the forwarder in a session
of its own, and exits at once. So the forwarder is no child of a training process. It survives ``ray.kill``,
``ray.shutdown`` and the driver's exit, which end a worker's children. The receiver is started in the same
way. A supervisor's thread in each recording process replaces a killed forwarder or receiver, so both run as
long as a process of the run lives.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from otel_rollout.base.environment import DELIVERY_PREFIXES, access_in, without_credentials, without_receiver
from otel_rollout.base.errors import is_new, logger
from otel_rollout.base.redaction_names import SHIPPED
from otel_rollout.base.setting_parsers import listed
from otel_rollout.base.waits import WAITS_VARIABLE, waits
from otel_rollout.record.launch.state import state
from otel_rollout.record.runs.ray_job import NODE_VARIABLES
from otel_rollout.record.runs.target import is_further_variable, names_target
from otel_rollout.settings import CONFIG_VARIABLE, Settings, given_to_forwarder
from otel_rollout.settings_reader import from_founder, is_inherited, to_variable
from otel_rollout.spool import layout, receiver_files
from otel_rollout.spool.detached import start_detached
from otel_rollout.spool.locks import SUCCESSOR, ForwarderLock
from otel_rollout.spool.receiver_files import ReceiverAddress, has_failed_since, is_receiving

_FIRST_CHECKS = 20
"""Number of checks at the short interval ``Waits.first_check``."""

_PASSED_VARIABLES = frozenset(
    {
        "ALL_PROXY", "CURL_CA_BUNDLE", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LC_ALL",
        "LD_LIBRARY_PATH", "LOGNAME", "NETRC", "NO_PROXY", "PATH", "PYTHONPATH", "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", WAITS_VARIABLE,
    }
)  # fmt: skip
"""Variables that the forwarder gets in addition to those of exporters."""

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])


def path_with_package(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ``PYTHONPATH`` by which a process finds this package; empty if the package is installed."""
    if "site-packages" in _PACKAGE_ROOT:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [_PACKAGE_ROOT, environ.get("PYTHONPATH")]))}


# --- the forwarder ------------------------------------------------------------------------------------------


def forwarder_runs(node_dir: Path) -> bool:
    """Return whether a forwarder runs for this directory."""
    with closing(ForwarderLock(node_dir)) as lock:
        return lock.is_held()


def ensure_forwarder(node_dir: Path, configured: Settings) -> None:
    """Start a forwarder for this directory unless one runs. Starting takes 2 ms.

    Several processes may start forwarders at once: one forwarder takes the lock, and the others exit. A
    successor is started if the running forwarder lacks access variables (credentials, certificates, proxies)
    of this process, or if a target refuses it and this process has other values of them.
    """
    environ = _forwarder_environment(os.environ, configured)
    with closing(ForwarderLock(node_dir)) as lock:
        is_running = lock.is_held()
        if is_running:
            is_needed = _would_successor_help(lock, node_dir, access_in(environ))
            if not is_needed or _is_successor_coming(lock, node_dir):
                return
            state.successor_starts.setdefault(node_dir, []).append(time.monotonic())
    arguments = ["-m", "otel_rollout.forwarder", str(node_dir)]
    if is_running:
        arguments.append(SUCCESSOR)
    start_detached(arguments, environ, node_dir / layout.FORWARDER_LOG)


_MAX_SUCCESSORS = 3
"""Maximum successors that a process starts in a directory because its values of the forwarder's variables
differ: two processes could replace each other's forwarder forever. A process that lacks one of the variables
starts at most one successor, so that a process with all variables has the last word."""


def would_successor_help(node_dir: Path, configured: Settings) -> bool:
    """Return whether a successor with this process's variables could deliver more."""
    access = access_in(_forwarder_environment(os.environ, configured))
    with closing(ForwarderLock(node_dir)) as lock:
        return _would_successor_help(lock, node_dir, access)


def _would_successor_help(lock: ForwarderLock, node_dir: Path, access: Mapping[str, str]) -> bool:
    if lock.lacks_access(access):
        return True
    if not (lock.has_other_access(access) and _is_refused(node_dir)):
        return False
    most = 1 if lock.has_further_access(access) else _MAX_SUCCESSORS
    return len(state.successor_starts.get(node_dir, ())) < most or _is_successor_coming(lock, node_dir)


def _is_successor_coming(lock: ForwarderLock, node_dir: Path) -> bool:
    """Return whether a successor is starting, or waits for the lock."""
    started = state.successor_starts.get(node_dir, [])
    is_starting = bool(started) and time.monotonic() - started[-1] < waits().succession
    return is_starting or lock.is_requested()


def _is_refused(node_dir: Path) -> bool:
    from otel_rollout.account.ledger_reader import read_ledger

    ledger = read_ledger(node_dir)
    return any(map(ledger.is_refused, ledger.failures))


def _forwarder_environment(environ: Mapping[str, str], configured: Settings) -> dict[str, str]:
    """Return the forwarder's environment, with the run's target and settings."""
    environ = without_receiver(environ)
    passed = {
        name: value
        for name, value in environ.items()
        if name in _PASSED_VARIABLES
        or name.upper() in _PASSED_VARIABLES
        or name.startswith(DELIVERY_PREFIXES)
        or is_further_variable(name, configured)
    }
    # The run's target takes precedence over the target that this process's variables name.
    of_run = configured.target_variables
    has_target = bool(of_run) or is_inherited("target_variables", environ)
    of_node = environ.get(NODE_VARIABLES, "").split(",")  # the address of its OTLP agent, for example
    of_others = [name for name in passed if has_target and names_target(name, configured)]
    for name in set(of_others).difference(of_node):
        if without_credentials(passed[name].strip()) != of_run.get(name):
            del passed[name]
    passed = {**of_run, **passed}
    names = (*given_to_forwarder("starter"), *given_to_forwarder("founder"))
    passed[CONFIG_VARIABLE] = to_variable(
        {name: getattr(configured, name) for name in names} | from_founder(configured.run_id, environ)
    )
    passed |= path_with_package(passed)
    passed["MLFLOW_DISABLE_TELEMETRY"] = "true"
    return passed


# --- the receiver of OTLP -----------------------------------------------------------------------------------


def ensure_receiver(node_dir: Path, configured: Settings) -> None:
    """Start a receiver for this directory unless one runs, or has just failed. Starting takes 2 ms.

    Several processes may start receivers at once: one takes the lock, and the others exit.
    """
    if is_receiving(node_dir) or has_failed_since(node_dir, waits().receiver_failed):
        return
    if not receiver_files.may_start(node_dir, waits().receiver_start):
        return
    arguments = ["-m", "otel_rollout.record.receiver", str(node_dir)]
    environ = _receiver_environment(os.environ, configured)
    start_detached(arguments, environ, node_dir / receiver_files.LOG_FILE)


def receiver_problem(node_dir: Path) -> str:
    """Return why nothing can be received; empty while a receiver runs or is starting."""
    return "" if is_receiving(node_dir) else has_failed_since(node_dir, 2 * waits().receiver_failed)


def wait_for_receiver(node_dir: Path, configured: Settings, timeout: float) -> ReceiverAddress | None:
    """Wait until the receiver listens; return None if it cannot, or does not within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (is_receiving(node_dir) and (address := receiver_files.read_address(node_dir))):
        if time.monotonic() > deadline or receiver_problem(node_dir):
            return None
        time.sleep(waits().poll)
    return dataclasses.replace(address, token=configured.receive_token or address.token)


def _receiver_environment(environ: Mapping[str, str], configured: Settings) -> dict[str, str]:
    """Return the receiver's environment: this process's, with all its settings."""
    passed = {**without_receiver(environ), CONFIG_VARIABLE: to_variable(vars(configured))}
    if any(step != SHIPPED for step in listed(configured.redact)):
        # The application's function is in a module that this process can import.
        passed["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return passed | path_with_package(passed)


# --- a thread that keeps both running -----------------------------------------------------------------------


class ForwarderSupervisor:
    """A thread that keeps a forwarder and a receiver running, and logs what prevents delivery.

    Args:
        node_dir: the node directory to forward.
        configured: settings of the run.
        found: creates the node directory and its manifest unless they exist.
    """

    def __init__(self, node_dir: Path, configured: Settings, found: Callable[[], object]) -> None:
        self._node_dir = node_dir
        self._settings = configured
        self._found = found
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-rollout-keep", daemon=True)

    def start(self) -> None:
        """Start the thread, which starts the forwarder: user code does not wait for the start."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the forwarder goes on."""
        self._stop.set()

    def _run(self) -> None:
        checks = 0
        while True:
            try:
                if self._settings.receive:
                    ensure_receiver(self._node_dir, self._settings)
                ensure_forwarder(self._node_dir, self._settings)
                self._restore_manifest()
                self._report_problems()
            except Exception as error:  # noqa: BLE001 - the thread goes on, and training is not disturbed
                self._log_once(f"the forwarder cannot be started or checked: {error}")
            checks += 1
            interval = waits().receiver_check if self._settings.receive else waits().forwarder_check
            if self._stop.wait(waits().first_check if checks < _FIRST_CHECKS else interval):
                return

    def _restore_manifest(self) -> None:
        """Write a removed manifest again: without it, commands find no directory.

        Cleaners of temporary directories remove the manifest first, because it is never written to. If the
        journals are gone too, the directory is being removed, and its writers create another directory.
        """
        if not (self._node_dir / layout.MANIFEST).exists() and layout.journals(self._node_dir):
            self._found()

    def _report_problems(self) -> None:
        from otel_rollout.account.ledger_reader import read_ledger

        if self._settings.receive and (reason := receiver_problem(self._node_dir)):
            self._log_once(f"nothing is received: {reason}", logging.ERROR)
        ledger = read_ledger(self._node_dir)
        for exporter, failure in ledger.failures.items():
            level = logging.ERROR if ledger.is_refused(exporter) else logging.WARNING
            self._log_once(
                f"{exporter} does not take spans at present, so they are kept on disk: {failure.message}",
                level,
            )
        for exporter, (run, problem) in ledger.links.items():
            if problem:
                self._log_once(f"{exporter}: traces are not linked to the run {run}. {problem}")

    def _log_once(self, message: str, level: int = logging.WARNING) -> None:
        if is_new(f"{self._node_dir}: {message}"):
            logger.log(level, "otel-rollout: %s", message)
