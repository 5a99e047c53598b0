"""docs/tutorial.md: our programs record what the page says, from every section."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coming_from import programs, run
from tests.spool_reader import read_directory, tree

OURS = {
    "verl's trace": {"rollout_trace": ["AgentLoop.generate"]},
    "mlflow.trace": {"rollout_trace": [{"agent": ["calculate"]}, "score reward"]},
    "weave.op": {"rollout_trace": [{"agent": ["calculate"]}, "score reward"]},
    "Logfire": {"rollout_trace": ["calculate", "score reward"]},
}
"""Section → the tree of spans that its program records."""


@pytest.mark.parametrize("title", OURS)
def test_our_program_records_one_trajectory(title: str, tmp_path: Path, test_exporters: None) -> None:
    """Each is a whole trajectory with its identity, and its reward where the page gives one."""
    _, ours = programs(title)
    run(ours, tmp_path, OTEL_TRACES_EXPORTER="test-file", OTEL_TEST_FILE=str(tmp_path / "delivered"))
    spans = read_directory(tmp_path / "spool")
    assert tree(spans) == OURS[title]
    root = next(span for span in spans if span.name == "rollout_trace")
    identity = [root.attributes[f"rollout.{name}"] for name in ("step", "sample_index", "rollout_n")]
    assert identity == [1, 0, 0]
    rewards = [root.attributes["rollout.score.reward"]] if "score(" in ours else []
    assert rewards == [1.0] * len(rewards)


@pytest.mark.parametrize("title", OURS)
def test_our_program_works_untraced(title: str, tmp_path: Path) -> None:
    """Without variables it runs, and leaves nothing behind."""
    _, ours = programs(title)
    run(ours, tmp_path)
    assert not (tmp_path / "spool").exists()
