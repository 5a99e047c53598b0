"""Test the metrics of recorded spans, which the application's MeterProvider gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys

CALL = "gen_ai.operation.name=chat gen_ai.response.model=policy"


def run(**variables: str) -> list[dict[str, object]]:
    """Run the program, and return the lines that it prints."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.programs.span_metrics"],
        env={**os.environ, "OTEL_ROLLOUT_EXPERIMENT": "experiment", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "internal error" not in ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_meter_provider_gets_model_calls_tools_trajectories_and_rewards() -> None:
    """A call of a client and its engine counts once, as does each count; names are bounded."""
    training, validation = "rollout.validate=False", "rollout.validate=True"
    measured, bounded, _ = run(OTEL_TRACES_EXPORTER="spool", OTEL_ROLLOUT_METRICS="true")
    assert measured == {
        f"gen_ai.client.operation.duration {CALL} {training}": 4,
        f"gen_ai.client.operation.duration {CALL} {validation}": 2,
        f"gen_ai.client.token.usage {CALL} gen_ai.token.type=input {training}": [4, 40],
        f"gen_ai.client.token.usage {CALL} gen_ai.token.type=output {training}": [4, 12],
        f"gen_ai.client.token.usage {CALL} gen_ai.token.type=input {validation}": [2, 20],
        f"gen_ai.client.token.usage {CALL} gen_ai.token.type=output {validation}": [2, 6],
        f"rollout.reply.truncated {CALL} {training}": 1,
        f"rollout.tool.duration error.type=ZeroDivisionError gen_ai.tool.name=calculator {training}": 1,
        f"rollout.tool.duration error.type=KeyError gen_ai.tool.name=lookup {training}": 1,
        f"rollout.tool.duration gen_ai.tool.name=lookup {training}": 1,
        f"rollout.tool.duration gen_ai.tool.name=lookup {validation}": 1,
        f"rollout.tool.duration gen_ai.tool.name=calculator {training}": 1,
        f"rollout.tool.duration gen_ai.tool.name=calculator {validation}": 1,
        f"rollout.trajectory.duration {training}": 1,
        f"rollout.trajectory.duration {validation}": 1,
        f"rollout.trajectory.duration error.type=LookupError {training}": 1,
        f"rollout.trajectory.turns {training}": [1, 2],
        f"rollout.trajectory.turns {validation}": [1, 2],
        f"rollout.trajectory.turns error.type=LookupError {training}": [1, 2],
        f"rollout.reward.count {training}": 2,
        f"rollout.reward.count {validation}": 1,
        f"rollout.reward.sum {training}": 0.5,
        f"rollout.reward.sum {validation}": 1.0,
    }
    assert bounded == [6 + 64 + 1, True]


def test_calls_of_other_libraries_are_measured_as_ours() -> None:
    """Their names for model, tokens and finish reason are read as in a table."""
    *_, theirs = run(OTEL_TRACES_EXPORTER="spool", OTEL_ROLLOUT_METRICS="true")
    call = "gen_ai.operation.name=chat gen_ai.request.model=theirs"
    assert theirs == {
        f"gen_ai.client.operation.duration {call} rollout.validate=False": 1,
        f"gen_ai.client.token.usage {call} gen_ai.token.type=input rollout.validate=False": [1, 7],
        f"rollout.reply.truncated {call} rollout.validate=False": 1,
    }


def test_without_the_setting_spans_are_not_measured() -> None:
    """By default the MeterProvider gets the counts of the delivery report alone."""
    assert run(OTEL_TRACES_EXPORTER="spool") == [{}, [0, False], {}]
