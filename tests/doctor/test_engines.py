"""The doctor finds an engine that will die at its first request, by the command line of its process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from otel_rollout.doctor import frameworks
from otel_rollout.doctor.diagnosis import Verdict

SERVE = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]
VERL = ["python", "-m", "verl.trainer.main_ppo"]
OF_VERL = "+actor_rollout_ref.rollout.engine_kwargs.vllm.otlp_traces_endpoint=http://127.0.0.1:4318/v1/traces"
STATISTICS = "actor_rollout_ref.rollout.disable_log_stats="


@pytest.mark.parametrize(
    ("words", "dies"),
    [
        (SERVE, False),
        ([*SERVE, "--otlp-traces-endpoint", "http://h"], False),
        ([*SERVE, "--otlp-traces-endpoint", "http://h", "--disable-log-stats"], True),
        ([*SERVE, "--disable_log_stats", "--otlp_traces_endpoint=http://h"], True),
        ([*SERVE, "--disable-log-stats"], False),
        ([*VERL, OF_VERL], True),
        ([*VERL, OF_VERL, STATISTICS + "True"], True),
        ([*VERL, OF_VERL, STATISTICS + "False"], False),
        ([*VERL, OF_VERL, STATISTICS + "false"], False),
        ([*VERL, OF_VERL.partition("=")[0] + "=null"], False),
        (VERL, False),
        (["grep", "otlp_traces_endpoint"], False),
    ],
)
def test_command_lines_are_told_apart(words: list[str], dies: bool) -> None:
    """The server has log statistics unless it is told otherwise; verl has none unless it is told."""
    assert frameworks.lets_engine_die(words) == dies


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM count as installed."""
    monkeypatch.setitem(frameworks.FRAMEWORKS, "vllm", ("otel-rollout",))


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with the arguments of verl's training."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, OF_VERL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


def test_running_program_is_found(installed: None, process: subprocess.Popen[bytes]) -> None:
    """The row names the process, and the advice says what to set."""
    (found,) = frameworks.check_engines()
    assert found.verdict is Verdict.FAIL
    assert str(process.pid) in found.found
    assert "disable_log_stats=False" in found.advice


def test_settings_of_vllms_own_spans_are_told(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vLLM is installed and nothing is wrong, the row says which settings belong together."""
    monkeypatch.setattr(frameworks, "_command_lines", lambda: iter([(1, SERVE)]))
    (found,) = frameworks.check_engines()
    assert found.verdict is Verdict.OK
    assert "disable_log_stats=False" in found.found


def test_there_is_no_row_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most machines need none of it."""
    monkeypatch.setitem(frameworks.FRAMEWORKS, "vllm", ("no-such-distribution",))
    assert list(frameworks.check_engines()) == []
