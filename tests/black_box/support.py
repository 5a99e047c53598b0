"""LiteLLM's proxy in front of engines, and clients as simple as a black-box agent's."""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import yaml

from otel_rollout.base import trajectory_key
from otel_rollout.turns import foreign_spans
from tests.ports import free_port
from tests.receiver.conftest import Run
from tests.spool_reader import Recorded, read_lines, segment_lines, segments_below
from tests.waiting import wait_for

ROOT: Final = Path(__file__).parents[2]
EXAMPLE: Final = ROOT / "examples" / "black_box"
LITELLM: Final = ROOT / ".venv-litellm" / "bin" / "litellm"
VLLM_SETTINGS: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
QUESTION: Final = "What do 3 apples and 4 pears cost?"
CHAT: Final = "/v1/chat/completions"
MASTER_KEY: Final = "sk-the-key-of-the-tests-proxy-0123456789abcdef"


def example() -> ModuleType:
    """Return the example's program as a module."""
    spec = importlib.util.spec_from_file_location("black_box_rollouts", EXAMPLE / "rollouts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Proxy:
    """LiteLLM's proxy with the example's configuration, which exports to a run's receiver.

    Attributes:
        run: the run; its program holds trajectories open.
        port: the proxy's port.
    """

    def __init__(self, run: Run, engines: Mapping[str, str], directory: Path) -> None:
        self.run = run
        self.port = free_port()
        config = yaml.safe_load((EXAMPLE / "proxy.yaml").read_text())
        config["model_list"] = [
            {
                "model_name": name,
                "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": url, "api_key": "none"},
            }
            for name, url in engines.items()
        ]
        path = directory / "proxy.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [LITELLM, "--config", path, "--host", "127.0.0.1", "--port", str(self.port)]
        settings = {**example().PROXY_SETTINGS, "LITELLM_MASTER_KEY": MASTER_KEY, "NO_PROXY": "*"}
        environ = {**run.agent_environment(), **settings}
        self._log = directory / "proxy.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(self._is_alive, seconds=400, what="LiteLLM's proxy")
        except BaseException:
            self.kill()
            raise

    def _is_alive(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()[-3000:]
        try:
            status, _ = self.get("/health/liveliness", "")
        except OSError:
            return False
        assert status != 500, self._log.read_text()[-3000:]
        return status == 200

    def key(self, trajectory: int) -> str:
        """Return the key of one of the run's trajectories."""
        return trajectory_key.signed(self.run.children[trajectory]["TRACEPARENT"], MASTER_KEY)

    def get(self, path: str, key: str) -> tuple[int, Any]:
        """Send a GET request."""
        return self._request("GET", path, None, {"authorization": f"Bearer {key}"})

    def post(self, path: str, body: Any, key: str, **headers: str) -> tuple[int, Any]:
        """Send a request; return status and answer, of a stream its events."""
        return self.send(path, json.dumps(body), key, **headers)

    def send(self, path: str, body: str, key: str, **headers: str) -> tuple[int, Any]:
        """Send a text as a request, by default as JSON."""
        sent = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
        return self._request("POST", path, body, sent)

    def websocket(self, path: str, key: str) -> int:
        """Ask for a websocket; return the answer's status."""
        upgrade = {
            "authorization": f"Bearer {key}",
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": base64.b64encode(bytes(16)).decode(),
        }
        return self._request("GET", path, None, upgrade)[0]

    def _request(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str]
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.getheader("content-type", "").startswith("text/event-stream"):
            lines = (
                line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")
            )
            return response.status, [json.loads(line) for line in lines if line.startswith("{")]
        is_json = response.getheader("content-type", "").startswith("application/json")
        return response.status, json.loads(text) if is_json else text

    def calls(self, trajectory: int, count: int) -> list[Recorded]:
        """Return a trajectory's received spans, as exported, when there are ``count``."""
        trace_id = self.run.children[trajectory]["TRACEPARENT"].split("-")[1]
        return received(self.run.node_dir, trace_id, count)

    def kill(self) -> None:
        """Kill the proxy, if it runs."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def root_of(proxy: Proxy, trajectory: int) -> str:
    """Return the id of a trajectory's root span."""
    return str(proxy.run.children[trajectory]["TRACEPARENT"].split("-")[2])


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message that say something."""
    kept = {name: message.get(name) for name in ("role", "content", "tool_calls", "tool_call_id")}
    return {name: value for name, value in kept.items() if value is not None}


def reply_of(span: Recorded) -> dict[str, Any]:
    """Return the message of a call's reply."""
    return plain(span.output["choices"][0]["message"])


def request_of(span: Recorded) -> list[dict[str, Any]]:
    """Return the messages of a call's request."""
    return [plain(message) for message in span.input["messages"]]


def ask(proxy: Proxy, key: str, model: str = "shop", **headers: str) -> int:
    """Ask one question; return the status."""
    messages = [{"role": "user", "content": QUESTION}]
    return proxy.post(CHAT, {"model": model, "messages": messages}, key, **headers)[0]


def received(node_dir: Path, trace_id: str, count: int) -> list[Recorded]:
    """Return the spans of a trace as exported, by their start, when at least ``count`` are recorded."""
    found = wait_for(
        lambda: spans if len(spans := exported(node_dir, trace_id)) >= count else None,
        what=f"{count} spans of {trace_id}",
    )
    return sorted(found, key=lambda recorded: recorded.span.start_time_unix_nano)


def exported(node_dir: Path, trace_id: str) -> list[Recorded]:
    """Return the recorded spans of a trace, completed as the forwarder completes them."""
    lines = [line + b"\n" for path in segments_below(node_dir) for line in segment_lines(path)]
    completed = [foreign_spans.filled(line).encoded for line in lines if trace_id.encode() in line]
    return read_lines(completed)


@contextmanager
def engine(model: Path, directory: Path, receiver: str, token: str) -> Iterator[str]:
    """Run vLLM with a model that calls tools, which exports to a receiver; the block gets its base URL."""
    port = free_port()
    command = [ROOT / ".venv-vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += [
        "--served-model-name",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-model-len",
        "1024",
    ]
    command += ["--enforce-eager", "--dtype", "float32", "--distributed-executor-backend", "uni"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    command += ["--otlp-traces-endpoint", f"http://{receiver}/v1/traces"]
    environ = {
        **os.environ,
        **VLLM_SETTINGS,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{token}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    log = directory / "engine.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: _is_serving(port, process, log), seconds=600, what="the engine")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()  # it sends its last spans
        process.wait(60)


def _is_serving(port: int, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-3000:]
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
