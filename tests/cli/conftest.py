"""Fixtures: a target, and a finished run with an archive."""

from __future__ import annotations

from pathlib import Path

import pytest

import otel_rollout
from tests.forwarder.test_delivery import node_directory, record
from tests.forwarders import wait_for_end
from tests.small_segments import set_segment_bytes


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere"


@pytest.fixture
def archived(
    fresh_process: None, test_exporters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return the node directory of a finished run with 30 archived spans."""
    set_segment_bytes(5000, monkeypatch)
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "first")}})
    for _ in range(3):
        record(9)
        otel_rollout.record.runtime.current().writer.flush(10)  # type: ignore[attr-defined]
    otel_rollout.shutdown(30)
    node_dir = node_directory(tmp_path)
    wait_for_end(node_dir)
    return node_dir
