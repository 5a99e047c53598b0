"""A process knows what all writers of its machine have in the spool."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from otel_rollout.record.recording import flusher
from otel_rollout.record.recording.flusher import SpoolUsage
from otel_rollout.spool.layout import SegmentName
from tests.waits import set_waits


def test_segments_of_all_writers_are_measured_once_per_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first, and again after the interval, which is longer for a process that writes nothing."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(flusher, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    set_waits(monkeypatch, spool_check=1, rare_spool_check=10)
    usage, used = SpoolUsage(tmp_path, 100), []
    for passed, rarely in ((0, False), (0.5, False), (0.5, False), (5, True), (5, True)):
        now.seconds += passed
        (tmp_path / SegmentName("1-0123456789abcdef", len(used) + 1).file).write_bytes(b"x" * 70)
        usage.check(rarely=rarely)
        used.append(usage.used)
    assert used == [70, 70, 210, 210, 350]
