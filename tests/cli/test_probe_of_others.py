"""`otel-rollout status --check` for the spool of another user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import otel_rollout
from tests.cli.test_probe import probe
from tests.faults.hostile import NOBODY, give_away
from tests.forwarder.test_delivery import node_directory, record


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_spool_of_another_user_is_no_healthy_one(
    fresh_process: None, test_exporters: None, target: Path, tmp_path: Path
) -> None:
    """A probe that names it sees none of its runs, and says so: it would be healthy for ever."""
    otel_rollout.configure({"test-file": {}})
    record(1)
    assert not otel_rollout.shutdown(60).undelivered
    spool = tmp_path / "spool"
    assert probe("--spool", spool).startswith("healthy: 1 run ")
    give_away(node_directory(tmp_path))
    output = " ".join(probe("--spool", spool, code=1).split())
    assert f"belongs to another user (id {NOBODY}), not to 0: check it as its owner" in output
    assert probe("--spool", spool, "--only", "forwarder", code=1)
    assert probe().startswith("healthy: 0 runs "), "its own spool, in which others have put something"
