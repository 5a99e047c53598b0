"""Hugging Face's `datasets` reads the table's files, and takes examples for training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import otel_rollout

PROGRAM = """
import json, sys
from datasets import Dataset, load_dataset
import otel_rollout

table = otel_rollout.open_table(sys.argv[1])
spans = load_dataset("parquet", data_files=table.files(), split="train")
examples = Dataset.from_list(list(table.messages(table.trajectories.filter(reward=1, validate=False))))
pairs = Dataset.from_list(list(table.preference_pairs(min_spread=0.5)))
found = {
    "spans": len(spans),
    "columns": spans.column_names,
    "scores": next(row for row in spans if row["scores"])["scores"],
    "examples": [len(row["messages"]) for row in examples],
    "roles": [message["role"] for message in examples[0]["messages"]][:2],
    "pairs": pairs["path"][:],
    "rejected": pairs[0]["rejected"][0]["role"],
}
print(json.dumps(found, default=str))
"""


def test_datasets_hold_spans_examples_and_pairs(demo_table: Path, tmp_path: Path) -> None:
    """As docs/table.md shows, in a process without a network."""
    offline = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(demo_table)],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    table = otel_rollout.open_table(str(demo_table))
    assert found["spans"] == len(table.spans)
    assert [*found["columns"], "group_path", "path"] == table.spans.columns
    assert {score["name"] for score in found["scores"]} == {"reward", "answer_format"}
    assert len(found["examples"]) == 30
    assert found["roles"] == ["system", "user"]
    assert found["pairs"] == [pair["path"] for pair in table.preference_pairs(min_spread=0.5)]
    assert found["rejected"] == "assistant"
