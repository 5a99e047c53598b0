"""The examples' OpenAI-compatible server, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "agents"


@contextmanager
def running_server() -> Iterator[str]:
    """Run the server in a process of its own; the block gets the value for ``OPENAI_BASE_URL``."""
    command = [sys.executable, str(EXAMPLES / "local_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def requests_of(url: str, model: str) -> list[dict[str, Any]]:
    """Return the requests for ``model`` that the server has received."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/requests", timeout=120) as answer:
        return [request for request in json.load(answer) if request["model"] == model]
