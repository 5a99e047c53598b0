"""A real MLflow server for tests, and what it says it has."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_port
from tests.side_by_side import shared

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # before MLflow is imported

if TYPE_CHECKING:
    from mlflow.entities import Trace

START_SECONDS = 180
STORE_VARIABLE = "TEST_MLFLOW_STORE"
"""``postgresql`` lets tests use a PostgreSQL server as MLflow's store, otherwise they use SQLite."""


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """Return a function that returns the URI of a database without tables."""
    if os.environ.get(STORE_VARIABLE) == "postgresql":
        from tests.postgresql import running_postgresql

        with running_postgresql() as new_database:
            yield new_database
    else:
        yield lambda: f"sqlite:///{tmp_path_factory.mktemp('mlflow-store')}/mlflow.db"


@contextmanager
def running_server(
    uri: str, directory: Path, *options: str, store: str | None = None, **variables: str
) -> Iterator[None]:
    """Run ``mlflow server`` with one worker at ``uri``, by default with a database in ``directory``."""
    log = directory / "server.log"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", uri.rpartition(":")[2], "--workers", "1"]
    command += ["--backend-store-uri", store or f"sqlite:///{directory}/mlflow.db"]
    command += ["--default-artifact-root", f"{directory}/artifacts", *options]
    # Without the jobs MLflow runs for evaluations: eight more processes, and more CPU time than all the rest.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **variables}
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _healthy(uri):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"mlflow server did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield
    finally:
        # The group, because the server runs its worker as a child.
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture(scope="session")
def server_uri(tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]) -> Iterator[str]:
    """One server for all tests, each of which has a project of its own."""

    @contextmanager
    def start(directory: Path) -> Iterator[str]:
        uri = f"http://127.0.0.1:{free_port()}"
        with running_server(uri, directory, store=new_store()):
            yield uri

    with shared(tmp_path_factory, "mlflow-server", start) as uri:
        yield uri


def stored(uri: str, project: str, filter_string: str | None = None) -> list[Trace]:
    """Return the project's matching traces with spans, read by MLflow's own client."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what MLflow's own imports warn about is not ours to fix
        from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(project)
    if experiment is None:
        return []
    return list(client.search_traces(locations=[experiment.experiment_id], filter_string=filter_string))


def _healthy(uri: str) -> bool:
    trusting = ssl._create_unverified_context()  # whether it is up is all that is asked
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=2, context=trusting) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
