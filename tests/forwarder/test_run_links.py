"""Linking: a tracker's run that is published late is told to the exporter, which delivered already."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from otel_rollout._state import process
from otel_rollout.launch import launcher
from otel_rollout.runs import directory, membership
from tests.forwarder.test_delivery import record
from tests.waiting import wait_for

RUN = {"test-file": "run-7"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "spool-delivered.jsonl"


def links(target: Path) -> list[Any]:
    """Run, rollout and forwarder's process of each call of ``link_run``."""
    path = Path(f"{target}.links")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_run_published_after_delivery_is_told(tracing: None, target: Path) -> None:
    """What was delivered before is linked, and shutdown() returns when it is."""
    record(2)
    wait_for(lambda: target.exists(), what="delivery")
    assert links(target) == []
    otel_rollout.publish_run(**RUN)
    rollout = membership.decide().run_id
    report = otel_rollout.shutdown(30)
    assert {(run, of) for run, of, _ in links(target)} == {("run-7", rollout)}
    assert report.exporters["test-file"].problem is None


def test_the_last_run_published_counts(tracing: None, target: Path) -> None:
    """A second run of the tracker replaces the first."""
    record(1)
    otel_rollout.publish_run(**RUN)
    wait_for(lambda: links(target), what="the first link")
    otel_rollout.publish_run(**{"test-file": "run-8"})
    otel_rollout.shutdown(30)
    runs = [run for run, _, _ in links(target)]
    assert (runs[0], runs[-1]) == ("run-7", "run-8")


def test_a_run_is_linked_after_all_processes_and_the_forwarder_are_gone(tracing: None, target: Path) -> None:
    """Whoever publishes last starts a forwarder if there is none."""
    record(1)
    arguments = dict(process.arguments)
    run_id = membership.decide().run_id
    otel_rollout.shutdown(30)
    node_dir = directory.node_directory(membership.decide())
    wait_for(lambda: not launcher.forwarder_runs(node_dir), what="the end of the forwarder")
    process.off = False
    membership.configure({**arguments, "run_id": run_id})
    otel_rollout.publish_run(**RUN)
    wait_for(lambda: links(target), what="the link")


def test_a_run_that_does_not_exist_is_said_and_delivery_goes_on(tracing: None, target: Path) -> None:
    """The account names the problem; spans arrive all the same, and nobody waits."""
    Path(f"{target}.link-fault").write_text("refused")
    otel_rollout.publish_run(**RUN)
    record(2)
    count = otel_rollout.shutdown(30).exporters["test-file"]
    assert (count.delivered, count.problem) == (3, "no such run, says the test")


def test_a_tracker_that_is_away_is_asked_again(tracing: None, target: Path) -> None:
    """The link is made when the tracker is back."""
    fault = Path(f"{target}.link-fault")
    fault.write_text("unavailable")
    otel_rollout.publish_run(**RUN)
    record(2)
    wait_for(lambda: target.exists(), what="delivery")
    fault.unlink()
    wait_for(lambda: links(target), what="the link")


def test_publishing_is_harmless(fresh_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tracing off, for an exporter that is not used, and on a disk that refuses, nothing is raised."""
    otel_rollout.publish_run(mlflow="run")
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", os.devnull)
    process.settings = None
    monkeypatch.setattr(process, "off", False)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    otel_rollout.publish_run(mlflow="run")
    otel_rollout.publish_run(console="run")


def test_a_misspelt_exporter_of_publish_run_is_warned_of(tracing, caplog):
    """The closest of the run's exporters is named; one that the run does not use is ignored as before."""
    otel_rollout.publish_run(weave="entity/project/run")
    assert [record.getMessage() for record in caplog.records] == []
    otel_rollout.publish_run(**{"test-fil": "run"})
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == "otel-rollout: publish_run(test-fil=…) names no exporter; is test-file meant?"
