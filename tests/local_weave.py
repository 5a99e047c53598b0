"""Weave's own server and client, each a process of ``.venv-weave``."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-weave" / "bin" / "python"
ENTITY = "local-team"
"""The default entity of the server's one account."""
API_KEY = "k" * 40
START_SECONDS = 120


class LocalWeave:
    """Weave's trace server with ClickHouse, and the unmodified client to read it.

    Attributes:
        url: of the server: W&B and trace server in one.
        environment: the variables that point a W&B user there.
    """

    def __init__(self, directory: Path, store: str = "chdb", python: Path = PYTHON) -> None:
        assert python.exists(), f"{python} is missing: make .venv-weave/.ready"
        self._log = (directory / "weave-server.log").open("ab+")
        script = ROOT / "tests" / "weave" / "local_server.py"
        self._server = subprocess.Popen(
            [str(python), str(script), "--store", store, "--database", str(directory / "weave")],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._server.stdout is not None
        try:
            port = self._server.stdout.readline().strip()
        except BaseException:  # whoever waits for it is told to stop
            self._server.kill()
            raise
        if not port:
            self._server.wait(START_SECONDS)
            raise RuntimeError(f"the Weave server did not start:\n{self.log()[-3000:]}")
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            "WANDB_API_KEY": API_KEY,
            "WANDB_BASE_URL": self.url,
            "WF_TRACE_SERVER_URL": self.url,
        }
        self._reader: subprocess.Popen[str] | None = None

    def __enter__(self) -> LocalWeave:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (self._reader, self._server):
            if process is not None:
                process.kill()
                process.communicate()
        self._log.close()

    def log(self) -> str:
        """What the server and the reader said."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def calls(self, project: str, **query: Any) -> list[dict[str, Any]]:
        """Calls as ``weave.init(…).get_calls(**query)`` returns them."""
        return self.ask({"project": f"{ENTITY}/{project}", **query})

    def told(self, project: str, *columns: str) -> list[dict[str, Any]]:
        """These columns of all calls, as the server has them.

        The client takes long to read many.
        """
        asked = {"project_id": f"{ENTITY}/{project}", "columns": columns}
        with self._answer("/calls/stream_query", asked) as lines:
            return [json.loads(line) for line in lines]

    def number_of_calls(self, project: str) -> int:
        """How many there are, as the server counts them."""
        answer: dict[str, Any] = self._request("/calls/query_stats", {"project_id": f"{ENTITY}/{project}"})
        return int(answer["count"])

    def usage(self, project: str, call_ids: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
        """Usage by model of these calls and all below each, as the server sums it up."""
        asked = {"project_id": f"{ENTITY}/{project}", "call_ids": call_ids}
        found: dict[str, dict[str, dict[str, Any]]] = self._request("/calls/usage", asked)["call_usage"]
        return found

    def agent_spans(self, project: str, **attributes: str) -> list[dict[str, Any]]:
        """Spans that were sent to the Agents endpoint, with attributes that are named by type."""
        columns = [{"source": f"custom_attrs_{type_}", "key": key} for type_, key in attributes.items()]
        asked = {"project_id": f"{ENTITY}/{project}", "limit": 100, "custom_attr_columns": columns}
        found: list[dict[str, Any]] = self._request("/agents/spans/query", asked)["spans"]
        return found

    def children(self, project: str, call_id: str) -> list[dict[str, Any]]:
        """What ``call.children()`` returns."""
        return self.ask({"project": f"{ENTITY}/{project}", "children_of": call_id})

    def feedback(self, project: str) -> list[dict[str, Any]]:
        """All feedback of the project."""
        return self.ask({"project": f"{ENTITY}/{project}", "feedback": True})

    def threads(self, project: str) -> list[dict[str, Any]]:
        """The project's threads."""
        return self.ask({"project": f"{ENTITY}/{project}", "threads": True})

    def ask(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """Put a question to the client (see ``tests/weave/reader.py``)."""
        if self._reader is None:
            self._reader = subprocess.Popen(
                [str(PYTHON), str(ROOT / "tests" / "weave" / "reader.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env={**os.environ, **self.environment},
            )
        assert self._reader.stdin is not None
        assert self._reader.stdout is not None
        self._reader.stdin.write(json.dumps(question) + "\n")
        self._reader.stdin.flush()
        reply = json.loads(self._reader.stdout.readline())
        assert "error" not in reply, reply["error"]
        answer: list[dict[str, Any]] = reply["answer"]
        return answer

    def fail(self, path: str, status: int, times: int = 1, **how: Any) -> None:
        """Have the next requests fail whose path contains ``path``.

        See ``tests/weave/local_server.py``.
        """
        self._request("/_test/fail", {"path": path, "status": status, "times": times, **how})

    def recover(self) -> None:
        """Undo all faults."""
        self._request("/_test/recover", {})

    def forget_projects(self) -> None:
        """Have no project exist any more."""
        self._request("/_test/forget_projects", {})

    def stats(self) -> dict[str, Any]:
        """How often each path was asked for, and how many calls were received."""
        answer: dict[str, Any] = self._request("/_test/stats", None)
        return answer

    def wait_for(self, project: str, number: int, seconds: float = 60, **query: Any) -> list[dict[str, Any]]:
        """The calls, once there are as many."""
        deadline = time.monotonic() + seconds
        while len(found := self.calls(project, **query)) < number:
            assert time.monotonic() < deadline, f"{len(found)} of {number} calls after {seconds} s"
            time.sleep(0.3)
        return found

    def _request(self, path: str, body: Any) -> Any:
        with self._answer(path, body) as answer:
            return json.load(answer)

    def _answer(self, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        who = base64.b64encode(f"api:{API_KEY}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {who}"}
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=60)


def where(**attributes: Any) -> dict[str, Any]:
    """A Weave query for calls whose fields have the given values.

    ``__`` in names stands for a dot.
    """
    equal = [
        {"$eq": [{"$getField": name.replace("__", ".")}, {"$literal": value}]}
        for name, value in attributes.items()
    ]
    return {"$expr": {"$and": equal}}
