"""Record two rollouts of an agent that cannot be edited; one of them is killed on the way.

The agents ask LiteLLM's proxy, which is started here and has the run's receiver for its spans::

    OTEL_TRACES_EXPORTER=mlflow MLFLOW_TRACKING_URI=sqlite:///mlflow.db OTEL_ROLLOUT_RECEIVE=true \\
        python examples/black_box/rollouts.py http://127.0.0.1:8000/v1 MODEL

The first argument is the engine's address. ``LITELLM`` names the command ``litellm`` of an environment with
the proxy (docs/agents.md).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import otel_rollout
from otel_rollout import rollout_trace_attr

FOLDER = Path(__file__).parent
MASTER_KEY = "sk-" + secrets.token_hex(24)
PROXY_SETTINGS = {
    "LITELLM_MASTER_KEY": MASTER_KEY,
    "LITELLM_OTEL_V2": "true",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only",
    "OTEL_TRACES_SAMPLER": "parentbased_always_off",  # only what belongs to a trajectory
    "OTEL_PROPAGATORS": "baggage",  # not tracecontext: the key names the trajectory, and no header
    "OTEL_BSP_SCHEDULE_DELAY": "1000",  # ms: a proxy that is killed loses the spans of a second
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no download at its start
    "REPEATED_STREAMING_CHUNK_LIMIT": "1000000",  # otherwise 100 equal chunks end a stream as an error
}
START_TIMEOUT = 300.0
"""Seconds in which the proxy must answer."""
PROBLEMS = {0: ("What is 3 + 4?", "7"), 1: ("What is 6 * 2?", "12")}
KILLED = 1


@contextlib.contextmanager
def proxy(engine: str) -> Iterator[str]:
    """Run LiteLLM's proxy; the block gets the base URL for agents."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [os.environ.get("LITELLM", "litellm"), "--config", str(FOLDER / "proxy.yaml"),
               "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    settings = {**PROXY_SETTINGS, "ENGINE_URL": engine, **otel_rollout.child_environment()}
    running = subprocess.Popen(command, env={**os.environ, **settings}, stdout=sys.stderr)
    try:
        wait_until_alive(f"http://127.0.0.1:{port}/health/liveliness", running)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        running.send_signal(signal.SIGINT)  # it sends its last spans; after SIGTERM it does not
        running.wait()


def wait_until_alive(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return when the proxy answers."""
    deadline = time.monotonic() + START_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, TimeoutError, ConnectionError):
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - this machine
            return
        time.sleep(0.2)
    sys.exit("LiteLLM's proxy does not answer")


def rollout(base_url: str, model: str, index: int) -> None:
    """Run the agent once, as a trajectory; it ends as an error if the agent fails."""
    question, right = PROBLEMS[index]
    with rollout_trace_attr(step=1, sample_index=index, rollout_n=0) as trajectory:
        key = otel_rollout.trajectory_key(MASTER_KEY)
        agent = subprocess.Popen(
            [sys.executable, str(FOLDER / "agent.py"), model, question],
            env={"PATH": os.environ["PATH"], "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key},
            stdout=subprocess.PIPE,
            text=True,
        )
        printed = []
        for line in agent.stdout or ():
            printed.append(line.strip())
            if index == KILLED:
                agent.kill()  # as a sandbox does that has run out of time or memory
        if agent.wait() != 0:
            raise RuntimeError(f"the agent ended with {agent.returncode}")
        trajectory.set_output(printed)
        otel_rollout.score("reward", float(printed[-1] == f"answer {right}"))


def main(engine: str, model: str) -> None:
    """Run both rollouts at once."""
    with proxy(engine) as base_url, ThreadPoolExecutor() as pool:
        ran = [pool.submit(rollout, base_url, model, index) for index in PROBLEMS]
        for index, future in enumerate(ran):
            print(index, future.exception() or "finished", flush=True)
    print(otel_rollout.shutdown().summary(), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
