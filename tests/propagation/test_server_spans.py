"""Spans of a server in another process join the trajectory that it serves."""

import importlib.util
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from tests.propagation.http_clients import send

CLIENTS = ["requests", "urllib3", "httpx2", "httpx2 async", "aiohttp"]
SERVER = Path(__file__).parent / "programs" / "traced_server.py"


@contextmanager
def traced_server():
    """Run a server that records in this process's run; the block gets its URL."""
    command = [sys.executable, SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()
            assert server.wait(30) == 0


@pytest.fixture
def instrumented(recorded):
    otel_rollout.instrument()
    yield recorded
    otel_rollout.uninstrument()


@rollout_trace_op
def ask(client, url):
    return send(client, url)


def test_spans_of_the_server_are_below_the_operation_that_asked(instrumented):
    """Requests are served in their operation's trace, with the trajectory's identity."""
    otel_rollout.configure(identity_hosts="private")
    with traced_server() as url, rollout_trace_attr(step=3) as trajectory:
        for client in [name for name in CLIENTS if importlib.util.find_spec(name.split()[0])]:
            assert ask(client, url) == 200
    spans = instrumented()
    asked = {span.span.span_id for span in spans if span.name == "ask"}
    served = [span for span in spans if span.name == "generate"]
    assert {span.span.parent_span_id for span in served} == asked
    assert {span.span.trace_id.hex() for span in served} == {trajectory.trace_id}
    assert {span.attributes["rollout.step"] for span in served} == {3}


def test_server_records_nothing_of_a_trajectory_that_is_sampled_out(instrumented):
    """The header says so; without one the server would start a trace of its own."""
    with traced_server() as url:
        with rollout_trace_attr(step=3, trace=False):
            assert send("urllib3", f"{url}/sampled-out") == 200
        assert send("urllib3", f"{url}/outside") == 200
    served = [span for span in instrumented() if span.name == "generate"]
    assert [span.input["path"] for span in served] == ["/outside"]
