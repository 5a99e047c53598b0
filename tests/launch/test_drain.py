"""Test when the wait for delivery is over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout.account.ledger import Ledger
from otel_rollout.deliver.crash_recovery import CrashRecovery
from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout.record.launch import drain, launcher
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.settings import Settings
from otel_rollout.spool import layout
from tests.waiting import wait_for

SETTINGS = Settings(project_name="p", exporters={"otlp": {}})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """The ledger of a node directory with one span, which the target refuses."""
    layout.write_manifest(tmp_path, layout.Manifest("run", "p", ("otlp",)))
    writer = SegmentWriter(tmp_path, {"service.name": "s"}, segment_bytes=1 << 20)
    assert writer.write(b"{}\n")
    writer.close(10)
    assert CrashRecovery(tmp_path).run().dead_are_complete
    with Ledger(tmp_path) as ledger:
        ledger.note_failure("otlp", ExportFailure(FailureKind.REFUSED, "401"))
        yield ledger


def test_wait_ends_when_the_target_refuses_the_credentials_of_this_process(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A person has to act, so waiting longer does not help."""
    assert drain.is_settled(tmp_path, SETTINGS, target=1)


def test_wait_goes_on_when_a_successor_has_just_taken_over(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal is the earlier forwarder's.

    Its successor has other credentials and forgets it.
    """

    def successor_takes_over(*_: object) -> bool:
        ledger.forget_failures(SETTINGS.exporters)
        return False

    monkeypatch.setattr(launcher, "would_successor_help", successor_takes_over)
    assert not drain.is_settled(tmp_path, SETTINGS, target=1)


@pytest.mark.usefixtures("forwarder")
def test_shutdown_that_does_not_wait_starts_the_forwarder_that_its_thread_had_no_time_to_start(
    tracing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is interrupted at its beginning is delivered all the same."""
    monkeypatch.setattr(launcher.ForwarderSupervisor, "start", lambda self: None)
    with otel_rollout.rollout_trace_attr(step=1):
        pass

    otel_rollout.shutdown(timeout=0)
    delivered = Path(os.environ["OTEL_ROLLOUT_SPOOL_DIR"] + "-delivered.jsonl")
    wait_for(lambda: len(delivered.read_text().splitlines()) == 1, what="delivery")
