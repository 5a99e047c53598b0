"""Run ``otel-rollout view`` in a process of its own, and ask it for pages."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.cli.command import ON_A_TERMINAL
from tests.waiting import wait_for

_ADDRESS = re.compile(r"at http://127\.0\.0\.1:(?P<port>\d+)(?P<page>\S*)")
_TAG = re.compile(r"<style>.*?</style>|<[^>]*>", re.DOTALL)


class Answer(NamedTuple):
    """The server's answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def text(self) -> str:
        """The words of the page, in one line."""
        return " ".join(unescape(_TAG.sub(" ", self.body)).split())


def hrefs(answer: Answer, beginning: str = "") -> list[str]:
    """Return the addresses of a page's links that begin in a way."""
    found = (unescape(href) for href in re.findall(r'href="([^"]*)"', answer.body))
    return [href for href in found if href.startswith(beginning)]


class Served:
    """A running server.

    Args:
        source: what ``--from`` names.
        directory: where its output is written.
        options: further options of the command.
        environ: environment variables that it gets besides this process's. It gets none of a tracker, because
            MLflow's client sets some in this process.
    """

    def __init__(
        self,
        source: Path | str,
        directory: Path,
        *options: str,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._output = directory / "view.log"
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "WANDB_"))
        }
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*ON_A_TERMINAL, "view", "--from", str(source), "--port", "0", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**own, **(environ or {}), "PYTHONUNBUFFERED": "1"},
            )
        self.port = 0

    def __enter__(self) -> Served:
        def started() -> re.Match[str] | None:
            assert self.process.poll() is None, self.output
            return _ADDRESS.search(self.output)

        found = wait_for(started, 120, "the server's address")
        self.port = int(found["port"])
        self.first_page = found["page"]
        return self

    def __exit__(
        self, type_: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def output(self) -> str:
        """What the command has printed."""
        return self._output.read_text(encoding="utf-8")

    @property
    def address(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def get(
        self, page: str, method: str = "GET", host: str | None = None, body: bytes | None = None
    ) -> Answer:
        """Ask for a page.

        Args:
            page: path and query.
            method: method of the request.
            host: value of the header ``Host``; by default the server's own.
            body: body of the request.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, page, body, {"Host": host or f"127.0.0.1:{self.port}"})
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, headers, answer.read().decode())
        finally:
            connection.close()

    def end(self) -> int:
        """Press Ctrl-C; return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)
