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
from collections.abc import Mapping
from pathlib import Path

import otel_rollout
from otel_rollout.deliver.election import Election
from otel_rollout.private_files import open_private
from otel_rollout.settings import CONFIG_VARIABLE, ExporterOptions, Settings, to_variable

LOG_FILE = "forwarder.log"
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
_PASSED_PREFIXES = ("OTEL_", "MLFLOW_", "WANDB_", "WF_", "AWS_", "AZURE_", "GOOGLE_")
"""What the forwarder may see of the environment: where to deliver, with which credentials, and no more."""

_logger = logging.getLogger("otel_rollout")


def forwarder_runs(node_dir: Path) -> bool:
    """Whether some process is the forwarder of this directory."""
    election = Election(node_dir)
    try:
        return not election.win()
    finally:
        election.close()


def ensure_forwarder(node_dir: Path, configured: Settings) -> None:
    """Start a forwarder for this directory unless one runs. Takes about 2 ms when it starts one.

    Several processes may do so at once: those forwarders elect one of them and the others exit.
    """
    if forwarder_runs(node_dir):
        return
    command = [sys.executable, "-m", "otel_rollout.deliver", str(node_dir)]
    with open(node_dir / LOG_FILE, "ab", opener=open_private) as log:
        subprocess.run(  # noqa: S603 - our own interpreter and module
            ["/bin/sh", "-c", '"$@" </dev/null &', "sh", *command],
            cwd="/",  # `python -m` looks for modules here first; and the job's directory may be deleted
            env=_forwarder_environment(os.environ, configured),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=False,
        )


def _forwarder_environment(environ: Mapping[str, str], configured: Settings) -> dict[str, str]:
    wanted = [pattern.strip() for pattern in configured.forwarder_variables.split(",")]
    passed = {
        name: value
        for name, value in environ.items()
        if name in _PASSED_VARIABLES
        or name.upper() in _PASSED_VARIABLES
        or name.startswith(_PASSED_PREFIXES)
        or any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
    }
    passed[CONFIG_VARIABLE] = to_variable(
        {
            "exporters": configured.exporters,
            "project_name": configured.project_name,
            "run_id": configured.run_id,
            "node": configured.node,
            "home_node": configured.home_node,
            "working_dir": configured.working_dir,
            "forwarder_linger": configured.forwarder_linger,
            "keep": configured.keep,
            "turns": configured.turns,
            "redact": configured.redact,
            "sample_seed": configured.sample_seed,
            "outcome_keep": configured.outcome_keep,
            "outcome_score": configured.outcome_score,
            "outcome_bytes": configured.outcome_bytes,
            "outcome_deadline": configured.outcome_deadline,
        }
    )
    # Where this package was imported from, for trees that are on sys.path but not installed.
    package_root = str(Path(otel_rollout.__file__).resolve().parent.parent)
    if "site-packages" not in package_root:
        passed["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, passed.get("PYTHONPATH")]))
    passed["MLFLOW_DISABLE_TELEMETRY"] = "true"
    return passed


def check_exporters(exporters: ExporterOptions) -> None:
    """Check that exporters and their options exist. Imports those that are given options.

    Raises:
        SettingsError: naming what does not exist, and what was probably meant.
    """
    if exporters:
        from otel_rollout.deliver.exporters import check_names, check_options

        check_names(exporters)
        for name, options in exporters.items():
            if options:
                check_options(name, options)


class Keeper:
    """A thread that keeps a forwarder running and says what stops it from delivering.

    Args:
        node_dir: what the forwarder forwards.
        configured: settings of the run.
    """

    def __init__(self, node_dir: Path, configured: Settings) -> None:
        self._node_dir = node_dir
        self._settings = configured
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
                self._report_problems()
            except Exception as error:  # noqa: BLE001 - the thread must live, and training not notice
                self._say(f"cannot look after the forwarder: {error}")
            checks += 1
            if self._stop.wait(_FIRST_CHECKS if checks < _SETTLING else _CHECK_INTERVAL):
                return

    def _report_problems(self) -> None:
        from otel_rollout.deliver.ledger import read_ledger
        from otel_rollout.exporting import FailureKind

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
