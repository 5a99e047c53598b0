"""One vLLM server for all tests, and the runs into which it sends its spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.spool_reader import Recorded
from tests.vllm.recording_run import Run, recording_run
from tests.vllm.server import Server
from tests.vllm.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny random model."""
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@dataclass
class Engine:
    """The server, and the receiver to which it sends.

    Attributes:
        server: the server.
        receiver_port: port of the receiver of each test's run.
        variables: with which the server was started.
        at_start: the spans that the server has sent when it started.
    """

    server: Server
    receiver_port: int
    variables: dict[str, str]
    at_start: list[Recorded]

    def start(self) -> None:
        """Start the server, which traces."""
        endpoint = self.variables["OTEL_EXPORTER_OTLP_ENDPOINT"]
        self.server.start(self.variables, "--otlp-traces-endpoint", f"{endpoint}/v1/traces")


@pytest.fixture(scope="session")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Start the server with the environment that a run gives its children.

    Later runs have the same receiver's address and token.
    """
    folder, port = tmp_path_factory.mktemp("engine"), free_port()
    server = Server(tiny_model, folder / "vllm.log")
    with recording_run(folder / "spool", port) as run:
        soon = {"OTEL_BSP_SCHEDULE_DELAY": "200"}  # ms; five seconds by default
        engine = Engine(server, port, {**run.child_environment, **soon}, [])
        try:
            engine.start()
            engine.at_start = run.wait(_has_loaded, "the spans of vLLM's start")
        except BaseException:
            server.kill()
            raise
    yield engine
    server.stop()


def _has_loaded(spans: list[Recorded]) -> bool:
    return {"Load model", "Allocate KV cache"} <= {each.name for each in spans}


@pytest.fixture
def start_run(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Return a function that starts the test's run; the server's spans go to it."""
    with ExitStack() as stack:
        yield lambda **variables: stack.enter_context(
            recording_run(tmp_path / "run", engine.receiver_port, **variables)
        )


@pytest.fixture
def run(start_run: Callable[..., Run]) -> Run:
    """Start the test's run."""
    return start_run()
