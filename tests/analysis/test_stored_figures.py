"""Reports and checks read the stored rows of trajectories, and say what the spans say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_rollout.look.analysis.health.checks import BUILT_IN, health_of
from otel_rollout.look.analysis.report.report import report_of
from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.table import compaction
from otel_rollout.table.query import Engine
from tests.analysis.generated_faults import FAULTS
from tests.analysis.generated_run import Shape, written


def test_report_and_health_of_stored_rows_are_those_of_the_spans(tmp_path: Path) -> None:
    """A run with every fault gives the same figures, findings and evidence after compaction."""
    store = written(tmp_path / "table", Shape(800, 8, seed=11, faults=FAULTS))
    compaction.compact(store, 0, lambda _: None)
    stored, computing = (Engine(store.open(), may_merge=may_merge) for may_merge in (True, False))
    run = run_of(stored)
    assert (stored.is_merged, computing.is_merged) == (True, False)
    report, expected = (report_of(engine, run).as_json() for engine in (stored, computing))
    assert report == _near(expected)
    assert health_of(stored, run, BUILT_IN) == health_of(computing, run, BUILT_IN)


def _near(value: Any) -> Any:
    """Return a value that equals one whose sums of fractions were added in another order."""
    if isinstance(value, dict):
        return {name: _near(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_near, value))
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
