"""The configuration with which vLLM dies: said at the engine's construction, and recorded when it happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm import running

WARNING = "vLLM's engine will die at its first request: otlp_traces_endpoint is set"


@pytest.fixture(scope="module")
def place(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the program, which takes some forty seconds."""
    place = tmp_path_factory.mktemp("trap")
    running.run(
        "trap",
        str(tiny_model),
        place=place / "run",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
    )
    return place / "run"


def test_trap_is_one_line_before_the_engine_dies(place: Path) -> None:
    """The line says what will happen and what to set; vLLM's own error has no text."""
    said = (place / "output.txt").read_text()
    assert said.count(WARNING) == 1
    assert said.index(WARNING) < said.index("constructed") < said.index("died of AssertionError()")
    assert "Set disable_log_stats=False" in said


def test_request_that_kills_the_engine_is_an_error(place: Path) -> None:
    """vLLM makes no span of it; ours has the exception that the caller gets."""
    (request,) = running.named(running.trees(place)["trapped"], "llm_request")
    assert request.span.status.code == 2
    assert request.attributes["error.type"] == "AssertionError"
    assert request.scope == "otel_rollout"


def test_ids_that_repeat_are_said(place: Path) -> None:
    """vLLM has seeded this process, and its own tracer provider draws ids from what it seeded."""
    said = (place / "output.txt").read_text()
    assert said.count("vLLM has set the seed 0 for Python's random numbers in this process") == 1
