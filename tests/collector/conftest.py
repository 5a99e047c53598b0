"""A real Collector: built or found by ``make collector``, and started per test.

Its absence fails tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.collector.support import (
    CONFIGURATIONS,
    TOKEN,
    Collector,
    running_collectors,
    training_environment,
)
from tests.collector.tailing import get_tailing


@pytest.fixture(scope="session")
def binary() -> Path:
    """The Collector's program."""
    ran = subprocess.run(
        [sys.executable, str(CONFIGURATIONS / "get_collector.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return Path(ran.stdout.strip())


@pytest.fixture(scope="session")
def tailing_binary() -> Path:
    """A Collector that has `otlp_json_file`, for agent-tail.yaml."""
    return get_tailing()


@pytest.fixture
def collector(binary: Path, tmp_path: Path) -> Iterator[Callable[..., Collector]]:
    """Return a function that starts Collectors.

    They end with the test, without warnings.
    """
    with running_collectors(binary, tmp_path) as start:
        yield start


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a training script that delivers over OTLP.

    Its endpoint is to be added.
    """
    return training_environment(tmp_path / "spool")


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    """Return a self-signed certificate for 127.0.0.1 and a token, as variables."""
    pem, key, token = (tmp_path / name for name in ("gateway.pem", "gateway.key", "token"))
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=gateway",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(pem)]
    subprocess.run(command, check=True, capture_output=True)
    token.write_text(TOKEN)
    return {"GATEWAY_CERTIFICATE": str(pem), "GATEWAY_KEY": str(key), "GATEWAY_TOKEN_FILE": str(token)}
