"""The rollout table on Ray: its rows as a dataset, and an example that judges every trajectory."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

import otel_rollout
from tests.ray_start import run_program
from tests.table.tables import root, written

ROOT = Path(__file__).parents[2]
ROWS = """
import json, sys, otel_rollout
rows = otel_rollout.open_table(sys.argv[1]).ray("tool_name", "newer").sort("tool_name").take_all()
print(json.dumps(rows))
"""


@pytest.fixture
def environment() -> dict[str, str]:
    """Variables of a program that starts Ray on two CPUs."""
    return {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def test_example_writes_a_score_of_every_trajectory(
    demo_table: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """A user's function gets each trajectory's messages once, on Ray's workers."""
    shutil.copytree(demo_table, tmp_path / "rollouts")
    program = [sys.executable, str(ROOT / "examples" / "judge_on_ray.py"), str(tmp_path / "rollouts")]
    ran = run_program(program, env=environment, cwd=tmp_path, timeout=300)
    assert "56 trajectories judged" in ran.stdout, ran.stdout + ran.stderr
    table = otel_rollout.open_table(str(tmp_path / "rollouts"))
    given = {row["trace_id"]: row for row in table.scores.filter(name="plans_ahead")}
    assert set(given) == {row["trace_id"] for row in table.trajectories}
    for example in table.messages():
        replies = [message for message in example["messages"] if message["role"] == "assistant"]
        assert given[example["trace_id"]]["comment"].endswith(f" of {len(replies)} replies")


def test_column_that_a_file_lacks_is_null(tmp_path: Path, environment: dict[str, str]) -> None:
    """Forwarders of several versions write files with different columns; only the wanted ones are read."""
    path = tmp_path / "table"
    written(path, [root("1", tool_name="a")])
    DeltaTable(str(path)).alter.add_columns([Field("newer", PrimitiveType("string"))])
    written(path, [root("2", tool_name="b")])
    ran = run_program([sys.executable, "-c", ROWS, str(path)], env=environment, cwd=tmp_path, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == [
        {"tool_name": "a", "newer": None},
        {"tool_name": "b", "newer": None},
    ]
