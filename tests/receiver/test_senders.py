"""OpenTelemetry's SDKs as senders: an agent in JavaScript, and what SDKs do when the receiver has no room."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from otel_rollout.record.receiver import app, service
from tests.agents.local_server import EXAMPLES, running_server
from tests.receiver.conftest import PROGRAMS
from tests.receiver.support import TOKEN, InProcess, in_process
from tests.spool_reader import read_directory, tree
from tests.waiting import wait_for

RETRY_AFTER = 2
QUESTION = "What do 3 apples and 4 pears cost?"


class Served:
    """A receiver's application behind a real server, with the time of each request."""

    def __init__(self, receiver: InProcess, listening: socket.socket) -> None:
        self.receiver = receiver
        self.port = listening.getsockname()[1]
        self.times: list[float] = []

        async def timed(scope: Any, receive: Any, send: Any) -> None:
            self.times.append(time.monotonic())
            await receiver.application(scope, receive, send)

        config = service._config(receiver.application)
        config.app = timed
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A receiver in this process that SDKs can send to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        with in_process(tmp_path / "spool", host=host) as receiver:
            served = Served(receiver, listening)
            try:
                yield served
            finally:
                served.close()


@pytest.mark.parametrize(
    ("protocol", "command", "spans"),
    [
        ("http/protobuf", [sys.executable, str(PROGRAMS / "sdk_agent.py"), "2"], 5),
        ("http/protobuf", ["node", str(EXAMPLES / "node" / "agent.mjs"), QUESTION], 8),
        ("http/json", ["node", str(EXAMPLES / "node" / "agent.mjs"), QUESTION], 8),
    ],
    ids=["Python", "JavaScript in protobuf", "JavaScript in JSON"],
)
def test_sdk_repeats_a_request_when_it_is_told_to(
    served: Served, monkeypatch: pytest.MonkeyPatch, protocol: str, command: list[str], spans: int
) -> None:
    """429 costs no span: after the seconds of Retry-After, the SDK sends the request again."""
    monkeypatch.setattr(app, "RETRY_AFTER", RETRY_AFTER)
    monkeypatch.setattr(app, "MAX_QUEUED_BYTES", 0)
    with running_server() as model:
        environ = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{served.port}",
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{TOKEN}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "NO_PROXY": "*",
            "OPENAI_BASE_URL": model,
            "OPENAI_API_KEY": "unused",
        }
        with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as agent:
            wait_for(lambda: served.receiver.counts.refused_requests.get("429"), what="a refused request")
            monkeypatch.setattr(app, "MAX_QUEUED_BYTES", 1 << 20)
            assert agent.wait(60) == 0
    assert served.receiver.counts.refused_requests == {"429": 1}
    assert served.times[1] - served.times[0] > RETRY_AFTER - 0.1
    assert len(served.receiver.recorded()) == spans


def test_example_of_an_agent_in_javascript_records_its_rollouts(tmp_path: Path) -> None:
    """The example runs as it says: each agent's spans lie in its trajectory, which has a reward."""
    environ = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_RECEIVE": "true",
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path),
    }
    command = [sys.executable, "-W", "error", str(EXAMPLES / "node_agent.py"), "--trajectories", "3"]
    subprocess.run(command, env=environ, check=True, timeout=300)
    spans = read_directory(tmp_path)
    roots = [span for span in spans if span.name == "rollout_trace"]
    assert sorted(root.attributes["rollout.sample_index"] for root in roots) == [0, 1, 2]
    for root in roots:
        (agent, score) = tree([s for s in spans if s.span.trace_id == root.span.trace_id])["rollout_trace"]
        assert [len(turns) for turns in agent.values()] == [7]
        assert score == "score reward"
        assert root.attributes["rollout.score.reward"] == 1.0
        assert root.attributes["rollout.sample_index"] in {
            s.attributes["rollout.sample_index"] for s in spans if s.scope == "shop-agent"
        }
