"""Many and slow connections to the receiver."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from otel_rollout.record.receiver import service
from otel_rollout.spool.receiver_files import read_counts
from tests.receiver.conftest import Run
from tests.receiver.support import request, span
from tests.waiting import wait_for
from tests.waits import changed

StartRun = Callable[..., Run]


@pytest.fixture
def connect() -> Iterator[Callable[[Run, bytes], socket.socket]]:
    """Return a function that opens a connection and sends bytes."""
    with ExitStack() as connections:

        def connected(run: Run, content: bytes = b"") -> socket.socket:
            connection = socket.create_connection((run.address.host, run.address.port))
            connections.callback(connection.close)
            connection.settimeout(60)
            connection.sendall(content)
            return connection

        yield connected


BEGINNINGS = [b"", b"POST /v1/traces HTTP/1.1\r\nHos"]
"""What slow clients send of a request."""


def head(run: Run) -> bytes:
    """Return the head of a request whose body never comes."""
    lines = (
        "POST /v1/traces HTTP/1.1",
        f"Host: {run.address.host}:{run.address.port}",
        f"Authorization: Bearer {run.address.token}",
        "Content-Type: application/x-protobuf",
        "Content-Length: 100",
        "",
        "",
    )
    return "\r\n".join(lines).encode()


def test_slow_clients_hold_up_nobody(start_run: StartRun, connect: Callable[..., socket.socket]) -> None:
    """While connections wait whose request never comes, others are served."""
    run = start_run(**changed(request_head=600))
    slow = [connect(run, beginning) for beginning in BEGINNINGS * 50]
    assert run.post(request([span()])).status_code == 200
    assert select.select(slow, [], [], 0)[0] == [], "none is answered or closed"


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_connection_whose_request_never_comes_is_closed(
    start_run: StartRun, connect: Callable[..., socket.socket], beginning: bytes
) -> None:
    """Neither a client that sends nothing nor one that sends half a head keeps its connection."""
    client = connect(start_run(**changed(request_head=0.2)), beginning)
    while client.recv(4096):  # until it is closed
        pass


def test_idle_connections_keep_nobody_away(
    start_run: StartRun, connect: Callable[..., socket.socket]
) -> None:
    """Thousands of connections without a request take neither files nor places from those with one."""
    run = start_run()
    for _ in range(2000):
        connect(run)
    for number in range(1, 4):
        assert run.post(request([span(number)])).status_code == 200
    assert len(os.listdir(f"/proc/{run.receiver_pid()}/fd")) < service._MAX_CONNECTIONS + 50


def test_connection_beyond_the_limit_is_refused_and_counted(
    start_run: StartRun, connect: Callable[..., socket.socket]
) -> None:
    """If all are in use, a further one gets 503 with Retry-After; there is room again when they end."""
    run = start_run()
    busy = [connect(run, head(run)) for _ in range(service._MAX_CONNECTIONS + 100)]
    wait_for(
        lambda: connect(run).recv(4096).startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"),
        what="a refused connection",
    )
    for connection in busy:
        connection.close()
    wait_for(lambda: run.post(request([span()])).status_code == 200, what="room")
    wait_for(
        lambda: (counts := read_counts(run.node_dir)) and counts.refused_requests.get("503"),
        what="the count",
    )
