"""Test links to a tracker's run that is published after delivery has begun."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.runs import founding, membership
from otel_rollout.record.runs.state import state as runs
from tests.forwarder.test_delivery import record
from tests.forwarders import wait_for_end
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("forwarder")

RUN = {"test-file": "run-7"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "spool-delivered.jsonl"


def links(target: Path) -> list[Any]:
    """Read run, rollout and node directory of each call of ``link_run``."""
    path = Path(f"{target}.links")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_run_published_after_delivery_is_linked(tracing: None, target: Path) -> None:
    """Spans delivered before are linked, and shutdown() waits for the link."""
    record(2)
    wait_for(lambda: target.exists(), what="delivery")
    assert links(target) == []
    otel_rollout.publish_run(**RUN)
    rollout = membership.decide().run_id
    report = otel_rollout.shutdown(30)
    assert {(run, of) for run, of, _ in links(target)} == {("run-7", rollout)}
    assert report.exporters["test-file"].problem is None


def test_last_published_run_is_linked(tracing: None, target: Path) -> None:
    """A second run of the tracker replaces the first."""
    record(1)
    otel_rollout.publish_run(**RUN)
    wait_for(lambda: links(target), what="the first link")
    otel_rollout.publish_run(**{"test-file": "run-8"})
    otel_rollout.shutdown(30)
    runs = [run for run, _, _ in links(target)]
    assert (runs[0], runs[-1]) == ("run-7", "run-8")


def test_run_published_after_the_forwarder_exited_is_linked(tracing: None, target: Path) -> None:
    """publish_run() starts a forwarder if none runs."""
    record(1)
    arguments = dict(runs.arguments)
    run_id = membership.decide().run_id
    otel_rollout.shutdown(30)
    node_dir = founding.node_directory(membership.decide())
    wait_for_end(node_dir)
    recording.off = False
    membership.configure({**arguments, "run_id": run_id})
    otel_rollout.publish_run(**RUN)
    wait_for(lambda: links(target), what="the link")


def test_run_that_does_not_exist_is_reported_and_delivery_goes_on(tracing: None, target: Path) -> None:
    """The report names the problem, and shutdown() does not wait for the link."""
    Path(f"{target}.link-fault").write_text("refused")
    otel_rollout.publish_run(**RUN)
    record(2)
    count = otel_rollout.shutdown(30).exporters["test-file"]
    assert (count.delivered, count.problem) == (3, "no such run, says the test")


def test_link_is_retried_while_the_tracker_is_away(tracing: None, target: Path) -> None:
    """The link is made when the tracker is back."""
    fault = Path(f"{target}.link-fault")
    fault.write_text("unavailable")
    otel_rollout.publish_run(**RUN)
    record(2)
    wait_for(lambda: target.exists(), what="delivery")
    fault.unlink()
    wait_for(lambda: links(target), what="the link")


def test_publish_run_raises_nothing(fresh_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is raised without tracing, for an unused exporter, or on a full disk."""
    otel_rollout.publish_run(mlflow="run")
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", os.devnull)
    runs.settings = None
    monkeypatch.setattr(recording, "off", False)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    otel_rollout.publish_run(mlflow="run")
    otel_rollout.publish_run(console="run")


def test_publish_run_warns_of_a_misspelled_exporter(tracing, caplog):
    """The warning suggests an exporter; other unused exporters cause no warning."""
    otel_rollout.publish_run(weave="entity/project/run")
    assert [record.getMessage() for record in caplog.records] == []
    otel_rollout.publish_run(**{"test-fil": "run"})
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == "otel-rollout: publish_run(test-fil=…) names no exporter; is test-file meant?"
