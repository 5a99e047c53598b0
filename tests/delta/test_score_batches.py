"""The scores of a batch are the newest scores of their trajectories in the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest

import otel_rollout
from otel_rollout import open_table
from tests import training_batch
from tests.waiting import wait_for

ARRAYS = [np.array([0.25 * row, np.nan, np.inf][: row % 4], np.float32) for row in range(training_batch.SIZE)]


def newest_in(table: Path) -> dict[tuple[str, int], dict[str, object]]:
    """Return row and rollout of each trajectory → name → value of its newest score."""
    sql = (
        "SELECT roots.sample_index, roots.rollout_n, scores.name, scores.value, scores.label "
        "FROM newest_scores AS scores JOIN roots ON scores.trace_id = roots.trace_id"
    )
    found: dict[tuple[str, int], dict[str, object]] = {}
    for row in open_table(str(table)).sql(sql).dicts():
        value = row["label"] == "True" if row["label"] else row["value"]
        found.setdefault((row["sample_index"], row["rollout_n"]), {})[row["name"]] = value
    return found


@pytest.mark.parametrize("is_imported", [False, True])
def test_each_value_of_each_trajectory_is_in_the_table(
    fresh_process, table, tmp_path, monkeypatch, is_imported
):
    """Given before and after the trajectories are delivered, or imported from an archive."""
    exporters = {"spool": {}} if is_imported else {"delta": {"uri": str(table)}}
    otel_rollout.configure(
        exporters,
        keep=True,
        project_name="p",
        experiment_name="e",
        training_tokens=True,
        spool_dir=str(tmp_path / "spool"),
    )
    early, late = training_batch.columns(1), training_batch.columns(2)
    training_batch.record_batch(early, token_values={"logprob": ARRAYS})
    training_batch.record_trajectories()
    (name,) = exporters
    if not is_imported:
        wait_for(
            lambda: otel_rollout.status().exporters[name].delivered > training_batch.SIZE, what="delivery"
        )
    training_batch.record_batch(late)
    report = otel_rollout.shutdown(200)
    assert (report.undelivered, report.lost, report.exporters[name].rejected) == (0, 0, 0)
    if is_imported:
        monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(table))
        code = "from otel_rollout.cli import app; app()"
        for _ in range(2):
            subprocess.run(
                [sys.executable, "-c", code, "import", "--to", "delta", str(tmp_path / "spool")],
                check=True,
                timeout=200,
            )
    values = training_batch.newest(early, late)
    for row, array in enumerate(ARRAYS):
        values[f"uid-{row // 4}", row % 4]["training_tokens"] = float(len(array))
    assert newest_in(table) == values
    sql = (
        "SELECT sample_index, rollout_n, attributes FROM recorded_spans WHERE score_name = 'training_tokens'"
    )
    rows = open_table(str(table)).sql(sql).dicts()
    assert len(rows) == training_batch.SIZE
    for row in rows:
        number = int(row["sample_index"].removeprefix("uid-")) * 4 + row["rollout_n"]
        stored = orjson.loads(orjson.loads(row["attributes"])["rollout.tokens.logprob"])
        given = [float(value) if np.isfinite(value) else None for value in ARRAYS[number]]
        assert stored == given
