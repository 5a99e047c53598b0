"""A PostgreSQL server for tests, of Debian's package ``postgresql``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.ports import free_port
from tests.waiting import wait_for

OWNER = "postgres"
"""User whom Debian's package makes; the server refuses to run as root."""
ROLE, PASSWORD = "mlflow", "pa:ss@w/rd"


@contextmanager
def running_postgresql() -> Iterator[Callable[[], str]]:
    """Run a server on the loopback; yield a function that makes a database.

    The function returns the database's URI.
    """
    directory = Path(tempfile.mkdtemp(prefix="otel-rollout-postgresql-"))  # a folder that its user may enter
    user = OWNER if os.getuid() == 0 else None
    if user:
        shutil.chown(directory, user)
    password_file = directory / "password"
    password_file.write_text(PASSWORD)
    password_file.chmod(0o644)
    data, port, log = directory / "data", free_port(), directory / "log"
    initdb = ["initdb", "--pgdata", data, "--username", ROLE, "--auth", "scram-sha-256", "--encoding", "UTF8"]
    _run([*initdb, "--no-locale", "--no-sync", "--pwfile", password_file], user)
    serve = [_binary("postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", "", "-F"]
    with log.open("wb") as output:
        server = subprocess.Popen(serve, stdout=output, stderr=output, cwd=directory, user=user)
    try:
        wait_for(lambda: _answers(server, port, log), 120, "an answer of PostgreSQL")
        yield lambda: _made(port)
    finally:
        server.send_signal(signal.SIGINT)  # ends sessions too
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(directory)


def _made(port: int) -> str:
    """Make a database; return its URI."""
    name = f"mlflow_{uuid.uuid4().hex[:8]}"
    _ask(port, f"CREATE DATABASE {name}")
    return f"postgresql://{ROLE}:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/{name}"


def _ask(port: int, query: str) -> None:
    command = [
        _binary("psql"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--username",
        ROLE,
        "--no-password",
    ]
    environment = {**os.environ, "PGPASSWORD": PASSWORD}
    subprocess.run(
        [*command, "--quiet", "--command", query, "postgres"],
        env=environment, check=True, capture_output=True, timeout=60,
    )  # fmt: skip


def _answers(server: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    if server.poll() is not None:
        pytest.fail(f"PostgreSQL did not start:\n{log.read_text()[-3000:]}")
    try:
        _ask(port, "SELECT 1")
    except subprocess.CalledProcessError:
        return False
    return True


def _run(command: list[str | Path], user: str | None) -> None:
    name, *arguments = map(str, command)
    ran = subprocess.run(
        [_binary(name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        user=user,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _binary(name: str) -> str:
    """Return the path of a program of the newest installed PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    assert found, "apt-get install postgresql"
    return str(found[-1])
