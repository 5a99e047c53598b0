"""docs/tutorial.md, verl's trace: with the plugin, their program records with otel-rollout as it is."""

from __future__ import annotations

from pathlib import Path

from tests.coming_from import programs, run, variables
from tests.spool_reader import read_directory, tree

TITLE = "verl's trace"


def test_their_program_records_without_a_change(tmp_path: Path) -> None:
    """One trajectory with its identity, in the project and experiment that verl's call names."""
    theirs, _ = programs(TITLE)
    run(theirs, tmp_path, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db", **variables(TITLE))
    spans = read_directory(tmp_path / "spool")
    assert tree(spans) == {"rollout_trace": ["AgentLoop.generate"]}
    root = next(span for span in spans if span.name == "rollout_trace")
    recorded = [root.attributes[f"rollout.{name}"] for name in ("project_name", "experiment_name", "step")]
    assert recorded == ["math-agents", "first", 1]
