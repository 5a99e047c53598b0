"""The spool's place: wherever it cannot be used, training goes on, is told once, and the counts add up."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, spool


@rollout_trace_op(name="op")
def op(text: str) -> int:
    return len(text)


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A real file system of so many megabytes, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={request.param}M", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def recording_there(
    fresh_process: None, test_exporters: None, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Tracing on, with the spool on that disk and delivery to another."""
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(disk / "spool"))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "test-file")
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "delivered"))
    return disk


def record(count: int) -> list[int]:
    """A trajectory; the results its operations gave."""
    with rollout_trace_attr(step=1):
        return [op("x" * 10_000) for _ in range(count)]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("disk", [1], indirect=True)
def test_a_full_disk_at_the_start(recording_there: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The program runs untraced, and one error says what is full and which variable chooses another place.

    Nothing is left that a forwarder would take for a writer.
    """
    assert record(3) == [10_000] * 3
    assert not list(recording_there.rglob("*.journal"))
    (message,) = said(caplog)
    assert "tracing is OFF" in message
    assert "No space left on device" in message
    assert str(recording_there) in message
    assert "OTEL_ROLLOUT_SPOOL_DIR" in message


@pytest.mark.parametrize("disk", [1], indirect=True)
def test_a_read_only_place(recording_there: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Likewise where nothing can be written."""
    subprocess.run(["mount", "-o", "remount,ro", recording_there], check=True)
    assert record(3) == [10_000] * 3
    (message,) = said(caplog)
    assert "Read-only file system" in message
    assert "OTEL_ROLLOUT_SPOOL_DIR" in message


def test_a_place_that_is_missing_is_made(
    tracing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parents included, for this user alone."""
    otel_rollout.configure(spool_dir=str(tmp_path / "a" / "b" / "spool"))
    record(1)
    (node_dir,) = spool.node_directories(tmp_path / "a" / "b" / "spool")
    assert node_dir.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("disk", [16], indirect=True)
def test_a_disk_that_fills_while_recording(recording_there: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What does not fit is dropped and counted, all else arrives; with room again, recording goes on."""
    assert record(1) == [10_000]
    ballast = recording_there / "checkpoint"
    with ballast.open("wb") as file:
        free = shutil.disk_usage(recording_there).free
        file.write(b"x" * max(0, free - (1 << 20)))
    assert record(1500) == [10_000] * 1500
    dropped = sum(otel_rollout.status().dropped.values())
    assert dropped > 500
    recorded = otel_rollout.status().recorded
    ballast.unlink()
    deadline = time.monotonic() + 30
    while otel_rollout.status().recorded < recorded + 100:  # the flusher looks for room now and then
        assert time.monotonic() < deadline
        record(10)
    report = otel_rollout.shutdown(30)
    assert report.started == report.recorded + sum(report.dropped.values())
    assert (report.exporters["test-file"].delivered, report.lost) == (report.recorded, 0)
    assert sum("cannot write to" in message for message in said(caplog)) == 1


def test_a_place_that_is_removed_under_way(
    tracing: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody cleans up the temporary directory: nothing is raised, and the process ends in time."""
    assert record(1) == [10_000]
    while (tmp_path / "spool").exists():  # the forwarder may be making a file there
        shutil.rmtree(tmp_path / "spool", ignore_errors=True)
    assert record(3) == [10_000] * 3
    assert otel_rollout.shutdown(5).recorded == 0
    assert os.path.isdir(tmp_path)
