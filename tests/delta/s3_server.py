"""Get and run an object store that speaks S3: versitygw, on a directory.

    python -m tests.delta.s3_server

Prints the path of the server: a ``versitygw`` on the PATH, or the one that was built before. Without them it
is built with Go, which takes minutes, once.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

VERSION = "1.8.0"
MODULE = "github.com/versity/versitygw/cmd/versitygw"
BUILD = Path(__file__).resolve().parents[2] / "build"
BUCKET = "rollouts"
_START_SECONDS = 60


class NoServerError(Exception):
    """No server is available; the message says why and what to do."""


def get() -> Path:
    """Return the path of the server.

    Raises:
        NoServerError: there is none, and it cannot be built.
    """
    if installed := shutil.which("versitygw"):
        return Path(installed)
    target = BUILD / f"versitygw-{VERSION}" / "versitygw"
    return target if target.exists() else _build(target)


@contextmanager
def running(directory: Path) -> Iterator[dict[str, str]]:
    """Run the server with an empty bucket; yield the variables for those who use it.

    Args:
        directory: for the objects, each of which is a file below ``directory/rollouts``.
    """
    (directory / BUCKET).mkdir(parents=True)
    port = free_port()
    keys = {"ROOT_ACCESS_KEY": "planted-id", "ROOT_SECRET_KEY": "planted-secret"}
    command = [str(get()), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(directory)]
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
                raise NoServerError(f"versitygw did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.05)


def _build(target: Path) -> Path:
    if shutil.which("go") is None:
        raise NoServerError("There is no versitygw: install it, or Go to build it.")
    print(f"Building versitygw {VERSION} with Go. This takes minutes, once.", file=sys.stderr, flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["go", "install", f"{MODULE}@v{VERSION}"]
    environment = {**os.environ, "GOBIN": str(target.parent)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise NoServerError(f"{' '.join(command)} failed:\n{ran.stderr[-3000:]}")
    return target


if __name__ == "__main__":
    try:
        print(get())
    except NoServerError as error:
        sys.exit(f"No S3 server: {error}")
