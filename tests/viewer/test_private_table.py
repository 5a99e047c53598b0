"""A spool's spans as a table for a moment."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from pathlib import Path

import pytest

from otel_rollout.look.errors import ViewerError
from otel_rollout.look.sources import private_table
from otel_rollout.look.sources.spool_source import SpoolSource


def test_directory_of_a_killed_query_is_removed_and_that_of_a_running_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query removes old directories that no process has locked, and its own."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    long_ago = time.time() - 3600
    for name in ("killed", "running", "fresh"):
        directory = temporary / f"otel-rollout-query-{name}"
        (directory / "table").mkdir(parents=True)
        (directory / "lock").touch(mode=0o600)
        if name != "fresh":
            os.utime(directory, (long_ago, long_ago))
    (temporary / "otel-rollout-query-link").symlink_to(tmp_path)
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"resourceSpans":[]}\n')
    source = SpoolSource(lines)
    with (temporary / "otel-rollout-query-running" / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ViewerError, match="no trajectory"), private_table.table_of(source):
            pass
    left = sorted(path.name.rpartition("-")[2] for path in temporary.iterdir())
    assert left == ["fresh", "link", "running"]
