"""Start the real servers that spans go to, each behind a proxy that can be shut."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.otlp_delivery import Collector
from benchmarks.tracers import PROJECT
from tests.local_weave import LocalWeave
from tests.mlflow_server import running_server
from tests.ports import free_port


class Target(NamedTuple):
    """A server that takes spans.

    Attributes:
        port: its port on the loopback.
        variables: environment variables that point a program at a given port.
        spans: returns the number of stored spans of the benchmark's project.
        arrived: returns about the same number, faster.
    """

    port: int
    variables: Callable[[int], dict[str, str]]
    spans: Callable[[], int]
    arrived: Callable[[], int]


Start = Callable[[Path], contextlib.AbstractContextManager[Target]]
"""Starts a server whose files are in a directory."""


@contextmanager
def mlflow(place: Path) -> Iterator[Target]:
    """Start ``mlflow server`` with one worker and a SQLite database."""
    port = free_port()
    spans = _spans_in(place / "mlflow.db")
    # Without its job consumers: a dozen processes that do not handle traces.
    with running_server(f"http://127.0.0.1:{port}", place, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"):
        yield Target(port, lambda port: {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}, spans, spans)


@contextmanager
def mlflow_database(place: Path) -> Iterator[Target]:
    """Provide a SQLite database of MLflow's, which is created by the first program that writes to it."""
    spans = _spans_in(place / "mlflow.db")
    yield Target(0, lambda _: {"MLFLOW_TRACKING_URI": f"sqlite:///{place}/mlflow.db"}, spans, spans)


def _spans_in(database_file: Path) -> Callable[[], int]:
    def spans() -> int:
        with contextlib.closing(sqlite3.connect(database_file, timeout=60)) as database:
            [(number,)] = database.execute(
                "SELECT COUNT(*) FROM spans JOIN experiments USING (experiment_id) WHERE experiments.name=?",
                [PROJECT],
            )
            return int(number)

    return spans


def _weave(store: str) -> Start:
    @contextmanager
    def start(place: Path) -> Iterator[Target]:
        with LocalWeave(place, store) as weave:
            port = int(weave.url.rpartition(":")[2])

            def variables(port: int) -> dict[str, str]:
                return {
                    name: value.replace(weave.url, f"http://127.0.0.1:{port}")
                    for name, value in weave.environment.items()
                }

            def spans() -> int:
                if store == "null":
                    return int(weave.stats()["calls"])
                return len({call["id"] for call in weave.told(PROJECT, "id", "ended_at") if call["ended_at"]})

            def count() -> int:
                return spans() if store == "null" else weave.number_of_calls(PROJECT)

            yield Target(port, variables, spans, count)

    return start


@contextmanager
def collector(place: Path) -> Iterator[Target]:
    """Start an agent Collector with its queue on disk."""
    running = Collector(place, "agent")
    try:
        yield Target(
            running.http,
            lambda port: {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{port}/v1/traces"},
            lambda: running.accepted_spans,
            lambda: running.accepted_spans,
        )
    finally:
        running.stop()


TARGETS: dict[str, Start] = {"mlflow": mlflow, "weave": _weave("chdb"), "otlp": collector}
"""Targets by the names of their exporters."""
WEAVE_THAT_KEEPS_NOTHING = _weave("null")


@contextmanager
def running(start: Start) -> Iterator[tuple[Target, Path]]:
    """Provide a server and a directory until the context ends."""
    with tempfile.TemporaryDirectory(prefix="otel-rollout-bench-", ignore_cleanup_errors=True) as directory:
        place = Path(directory)
        with start(place) as target:
            yield target, place


class Gate:
    """A proxy in front of a server.

    While it is shut, it refuses connections and cuts existing ones.
    """

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self._behind = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.open()

    def open(self) -> None:
        """Accept connections."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def shut(self) -> None:
        """Refuse connections."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        self._writers |= {writer, behind_writer}
        await asyncio.gather(_copy(reader, behind_writer), _copy(behind_reader, writer))
        self._writers -= {writer, behind_writer}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
