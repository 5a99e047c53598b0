"""Fixtures: a real MLflow server, a real SQLite store, and exporters to them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from mlflow_support import ADMIN, IN_A_FILE, PASSWORD, SecuredServer

from otel_rollout_mlflow import MlflowSpanExporter
from tests.fake_server import FakeServer, serving
from tests.mlflow_server import free_port, running_server
from tests.sdk_spans import Rollouts

# What MLflow is warned of about its own code; `filterwarnings = error` would make MLflow fail.
MLFLOW_WARNINGS = ("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore MLflow's warnings in the tests of this folder only."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in MLFLOW_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(autouse=True)
def _no_mlflow_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's MLflow variables."""
    for name in list(os.environ):
        if name.startswith("MLFLOW_") and name != "MLFLOW_DISABLE_TELEMETRY":
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def database_uri(new_store: Callable[[], str]) -> str:
    """A database without tables, which the exporter creates. A SQLite file does not exist either."""
    return new_store()


@pytest.fixture(params=["server", "database"])
def uri(request: pytest.FixtureRequest) -> str:
    """Each way into MLflow in turn."""
    return str(request.getfixturevalue(f"{request.param}_uri"))


@pytest.fixture
def project() -> str:
    """A project, and so an experiment, for one test."""
    return f"project-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def exporter_for() -> Iterator[Callable[..., MlflowSpanExporter]]:
    """Make exporters that are shut down when the test ends."""
    made: list[MlflowSpanExporter] = []

    def make(uri: str, **arguments: Any) -> MlflowSpanExporter:
        made.append(MlflowSpanExporter(tracking_uri=uri, **arguments))
        return made[-1]

    yield make
    for exporter in made:
        exporter.shutdown()


@pytest.fixture
def rollouts(project: str) -> Rollouts:
    """A builder of trajectories of the test's project."""
    return Rollouts(project)


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    """A server that answers as MLflow does when it is in order."""
    experiment = b'{"experiment": {"experiment_id": "1", "name": "any", "lifecycle_stage": "active"}}'
    with serving({"/version": (200, {}, b"3.17.2"), "/experiments/get": (200, {}, experiment)}) as fake:
        yield fake


@pytest.fixture
def closed_port_uri() -> str:
    """An address where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The URI of a SQLite file that does not exist."""
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """``mlflow server --app-name basic-auth`` with an unknown CA's certificate."""
    directory = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(directory / "other-ca.pem"))
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(directory / "server.pem"))
    (directory / "auth.ini").write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{directory}/auth.db\n"
        f"admin_username = {ADMIN}\nadmin_password = {IN_A_FILE}\nauth_cache_ttl_seconds = 60\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    uri = f"https://localhost:{free_port()}"
    pem = directory / "server.pem"
    options = ["--app-name", "basic-auth", "--uvicorn-opts", f"--ssl-keyfile {pem} --ssl-certfile {pem}"]
    variables = {
        "MLFLOW_AUTH_CONFIG_PATH": str(directory / "auth.ini"),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "any",
    }
    with running_server(uri, directory, *options, **variables):
        yield SecuredServer(uri, str(directory / "ca.pem"), str(directory / "other-ca.pem"))


@pytest.fixture
def as_admin(secured: SecuredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of the administrator, which MLflow's client reads too."""
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", secured.ca)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", ADMIN)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
