"""vLLM's OpenAI server on a CPU, as a process."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from otel_rollout.base.environment import PREFIXES
from tests.ports import free_port
from tests.vllm.tiny_model import MAX_TOKENS
from tests.waiting import wait_for

ON_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: a second one would import for a minute, too
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # no compiler at the first logprobs
}
BLOCK_TOKENS = 32
BLOCKS = 64
"""Blocks of the cache: enough for 2048 tokens, so that a few long requests preempt each other."""
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_START_SECONDS = 540
"""A minute where nothing else runs."""


class Server:
    """A server that can be killed and started again at its address.

    Args:
        model: folder of the model, which is served as ``tiny``.
        log: file for the server's output.
    """

    def __init__(self, model: Path, log: Path) -> None:
        self.model = model
        self.log = log
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, variables: Mapping[str, str], *arguments: str) -> None:
        """Start the server, and wait until it answers.

        Args:
            variables: of the environment, which has no other ones of tracing.
            *arguments: further arguments of the command.
        """
        environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self._command(), *arguments],
                env={**environ, **ON_CPU, **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,  # its engine is a process of its own, which outlives a killed server
                preexec_fn=_end_with_parent,
            )
        wait_for(self._answers, _START_SECONDS, f"vLLM, see {self.log}")

    def _command(self) -> list[str]:
        options = {
            "model": str(self.model),
            "served-model-name": "tiny",
            "host": "127.0.0.1",
            "port": str(self.port),
            "max-model-len": str(MAX_TOKENS),
            "dtype": "float32",
            "distributed-executor-backend": "uni",
            "block-size": str(BLOCK_TOKENS),
            "num-gpu-blocks-override": str(BLOCKS),
        }
        switches = ["--enforce-eager", "--enable-per-request-metrics", "--enable-scale-out"]
        given = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *given, *switches]

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        try:
            return self.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str) -> httpx.Response:
        """Request a path without tracing."""
        with httpx.Client(trust_env=False, timeout=10) as client:
            return client.get(self.url + path)

    def metric(self, name: str) -> float:
        """Return a number that the server counts for Prometheus, such as ``vllm:num_preemptions_total``."""
        found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", self.get("/metrics").text, re.MULTILINE)
        return sum(map(float, found))

    def kill(self) -> None:
        """Kill the server and its engine, as the kernel does when memory is short."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End the server in order."""
        if self.process is not None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
            self.kill()


def _end_with_parent() -> None:
    """Let the kernel end this process when the tests are killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def chat(text: str, **options: Any) -> dict[str, Any]:
    """Return the body of a chat request that generates eight tokens."""
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": 8, "ignore_eos": True, **options}
