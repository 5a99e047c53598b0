"""Run an object store that speaks S3: versitygw, on a directory."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import go_tools
from tests.ports import free_port

BUCKET = "rollouts"
_START_SECONDS = 60


@contextmanager
def running(directory: Path, options: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Run the server with an empty bucket; yield the variables for those who use it.

    Args:
        directory: for the objects, each of which is a file below ``directory/rollouts``.
        options: further options of the server.
    """
    (directory / BUCKET).mkdir(parents=True)
    port = free_port()
    keys = {"ROOT_ACCESS_KEY": "planted-id", "ROOT_SECRET_KEY": "planted-secret"}
    command = [
        str(go_tools.get("versitygw")),
        "--port",
        f"127.0.0.1:{port}",
        "--quiet",
        *options,
        "posix",
        str(directory),
    ]
    log = directory.with_suffix(".log")
    with log.open("wb") as output:
        server = subprocess.Popen(command, env={**os.environ, **keys}, stdout=output, stderr=output)
    try:
        _wait(server, port, log)
        yield {
            "AWS_ACCESS_KEY_ID": keys["ROOT_ACCESS_KEY"],
            "AWS_SECRET_ACCESS_KEY": keys["ROOT_SECRET_KEY"],
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_REGION": "us-east-1",
        }
    finally:
        server.kill()
        server.wait()


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server accepts connections."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"versitygw did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.05)
