"""A real MLflow server, a real SQLite store, and real SDK spans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # before MLflow is imported

from mlflow_support import FakeServer, Rollouts, free_port

from otel_rollout_mlflow import MlflowSpanExporter

SERVER_START_SECONDS = 60


# What MLflow is warned of about its own code; `filterwarnings = error` would make MLflow fail.
MLFLOW_WARNINGS = ("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tolerate those warnings in the tests of this folder and nowhere else."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in MLFLOW_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(autouse=True)
def _no_mlflow_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the developer has exported, tests start from an MLflow-free environment."""
    for name in list(os.environ):
        if name.startswith("MLFLOW_") and name != "MLFLOW_DISABLE_TELEMETRY":
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def server_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real ``mlflow server`` with one worker on a free port."""
    directory = tmp_path_factory.mktemp("mlflow-server")
    uri = f"http://127.0.0.1:{free_port()}"
    log = directory / "server.log"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", uri.rpartition(":")[2], "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{directory}/mlflow.db"]
    command += ["--default-artifact-root", f"{directory}/artifacts"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + SERVER_START_SECONDS
        while not _healthy(uri):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"mlflow server did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield uri
    finally:
        # The group, because the server runs its worker as a child.
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture(scope="session")
def sqlite_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database that does not exist yet: the exporter creates it."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow-store')}/mlflow.db"


@pytest.fixture(params=["server", "sqlite"])
def uri(request: pytest.FixtureRequest) -> str:
    """Each way into MLflow in turn."""
    return str(request.getfixturevalue(f"{request.param}_uri"))


@pytest.fixture
def project() -> str:
    """A project, and so an experiment, of the test's own."""
    return f"project-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def exporter_for() -> Iterator[Callable[..., MlflowSpanExporter]]:
    """Exporters that are shut down when the test ends."""
    made: list[MlflowSpanExporter] = []

    def make(uri: str, **arguments: Any) -> MlflowSpanExporter:
        made.append(MlflowSpanExporter(tracking_uri=uri, **arguments))
        return made[-1]

    yield make
    for exporter in made:
        exporter.shutdown()


def _healthy(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def rollouts(project: str) -> Rollouts:
    """Trajectories of the test's project."""
    return Rollouts(project)


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    """Runs a :class:`FakeServer` for one test."""
    fake = FakeServer()
    experiment = b'{"experiment": {"experiment_id": "1", "name": "any", "lifecycle_stage": "active"}}'
    fake.answers["/api/2.0/mlflow/experiments/get-by-name"] = (200, {}, experiment)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer()

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            fake.received.append((path, dict(self.headers)))
            default = (200, {}, fake.version.encode() if path == "/version" else b"{}")
            status, headers, body = fake.answers.get(path, default)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.uri = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield fake
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def closed_port_uri() -> str:
    """Where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The URI of a SQLite file of the test's own, not created."""
    return f"sqlite:///{tmp_path}/mlflow.db"
