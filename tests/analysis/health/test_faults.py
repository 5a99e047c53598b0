"""Each fault that is planted in a generated run is found, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rollout.look.analysis.health.checks import BUILT_IN, health_of
from otel_rollout.look.analysis.health.findings import Health
from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.table.query import Engine
from tests.analysis.generated_faults import EXPECTED, FAULTS, FOLLOWING, SIX_CAUSES, planted
from tests.analysis.generated_run import Shape, written

_SHAPE = Shape(trajectories=1600, steps=16, seed=11)


_SLACK = 4
"""Steps of a small run after which a fault is found at the latest."""


def health(path: Path, *faults: str) -> Health:
    shape = Shape(_SHAPE.trajectories, _SHAPE.steps, seed=_SHAPE.seed, faults=faults)
    engine = Engine(written(path / "table", shape).open())
    return health_of(engine, run_of(engine), BUILT_IN)


def alarms(found: Health) -> set[str]:
    return {finding.name for finding in found.findings if finding.status != "healthy"}


def test_clean_run_is_healthy(tmp_path: Path) -> None:
    """Tools, replies and trajectories that fail at a steady rate raise no alarm, and all is observed."""
    found = health(tmp_path)
    assert alarms(found) == set()
    assert found.trajectories == 1600 // (16 * 8) * 8 * 16


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found_where_it_begins(tmp_path: Path, fault: str) -> None:
    """Only the check of the fault raises an alarm, and those of what follows from it."""
    found = health(tmp_path, fault)
    assert {fault} <= alarms(found) <= {fault, *FOLLOWING.get(fault, ())}
    finding = next(each for each in found.findings if each.name == fault)
    begin = planted((fault,), _SHAPE.steps).begins[fault]
    assert finding.steps
    assert min(finding.steps) >= begin
    assert finding.evidence or fault == "scores_unresolved"  # such scores belong to no trajectory
    assert {int(path.split("/")[0]) for path in finding.evidence} <= set(finding.steps)


def test_six_causes_in_one_run_are_all_found(tmp_path: Path) -> None:
    """The causes begin at different steps, and each raises its own alarm."""
    found = health(tmp_path, *SIX_CAUSES)
    expected = {check for cause in SIX_CAUSES for check in EXPECTED.get(cause, (cause,))}
    assert expected <= alarms(found)
    steps = {finding.name: min(finding.steps) for finding in found.findings if finding.steps}
    begins = planted(tuple(SIX_CAUSES), _SHAPE.steps).begins
    for cause, begin in begins.items():
        for check in EXPECTED.get(cause, (cause,)):
            assert begin <= steps[check] <= begin + _SLACK, (check, steps[check], begin)
