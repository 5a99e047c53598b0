"""Test unusable spools, and commands on them: one line has the reason."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.doctor.diagnosis import Verdict
from otel_rollout.doctor.filesystem import check_spool_directory
from otel_rollout.record import runtime
from otel_rollout.record.launch import shutdown
from otel_rollout.record.runs import founding, membership
from otel_rollout.spool import layout
from tests.faults.running import COMMAND, run
from tests.programs.record_in_unusable_spool import FAULTS
from tests.waiting import wait_for

UNPRIVILEGED = """
import ctypes, os
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
"""


@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("fault", FAULTS)
def test_program_whose_spool_cannot_be_used_ends_normally(fault: str, user: str, open_to_all: Path) -> None:
    """status(), shutdown() and the exit raise nothing, and log each message once."""
    run_id = "r" * 300 if fault == "run_id_too_long_for_a_name" else "run"
    if fault == "squatted" and user == "nobody":  # only root can give directories away
        (open_to_all / "spool" / "run" / "node").mkdir(parents=True)
        (open_to_all / "spool" / "run").chmod(0o700)
        os.chown(open_to_all / "spool", 65534, 65534)
    program = ["record_in_unusable_spool", str(open_to_all / "spool"), run_id, fault, user]
    ran = run(program, {"OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "1"})
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err
    shutdown, shutdown, rest = ran.out.splitlines()
    assert rest == "summed up True lost 0"
    for line in (shutdown, shutdown):
        recorded, is_there, problem = line.split(" ", 2)
        assert recorded in ("0", "2", "4"), line
        assert is_there == "True" or problem == "None", line
    lines = [line for line in ran.err.splitlines() if "otel-rollout" in line or "otel_rollout" in line]
    assert len(lines) == len(set(lines)) <= 6, ran.err


@pytest.mark.parametrize("command", ["status", "show", "forward"])
def test_command_on_unreadable_spool_names_the_reason(command: str, open_to_all: Path) -> None:
    """One line names directory and reason; no line is about the command's own run."""
    layout = open_to_all / "spool"
    layout.mkdir(mode=0o700)
    as_root = (
        f"import sys\nfrom otel_rollout.cli import app\ntry: app([{command!r}])\nexcept SystemExit: pass\n"
    )
    program = as_root + "print('NOBODY', file=sys.stderr)\n" + UNPRIVILEGED + f"app([{command!r}])"
    ran = run(program, {"OTEL_TRACES_EXPORTER": "console", "OTEL_ROLLOUT_SPOOL_DIR": str(layout)})
    assert ran.code == 2, ran.err
    _, said = ran.err.split(
        "NOBODY\n"
    )  # now the modules are imported, which the user nobody may not be able to read
    assert said.strip().rstrip(".") == f"{layout} cannot be read: Permission denied"


def test_status_of_unreadable_spool_has_counts_of_this_process(
    tracing: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing counts as delivered; repeated status() logs one warning."""
    with rollout_trace_attr(step=1):
        rollout_trace_op(lambda: None)()
    node_dir = founding.node_directory(membership.decide())
    wait_for(lambda: otel_rollout.status().exporters["test-file"].delivered == 2, what="delivery")
    assert shutdown.delivered_here()["test-file"].delivered == 2
    node_dir.chmod(0o777)
    assert shutdown.delivered_here() == {}  # a counter does not go back
    reports = [otel_rollout.status(), otel_rollout.status(), otel_rollout.shutdown(1)]
    node_dir.chmod(0o700)
    for report in reports:
        assert (report.started, report.recorded, report.lost) == (2, 2, 0)
        assert report.exporters["test-file"].pending == 2
        assert "is writable by other users" in str(report.problem)
        assert str(report.problem) in report.summary()
    assert sum("spans are not known" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("command", ["status", "status --json", "forward"])
@pytest.mark.parametrize("place", ["nothing", "a file", "a link to nothing", "too long"])
def test_command_on_unusable_directory_names_the_reason(command: str, place: str, tmp_path: Path) -> None:
    """The reason is one line, with exit code 1 or 2; ``--json`` output stays JSON."""
    path = tmp_path / ("x" * 300 if place == "too long" else "place")
    if place == "a file":
        path.touch()
    if place == "a link to nothing":
        path.symlink_to(tmp_path / "nothing")
    ran = run(
        f"import sys; sys.argv[1:] = {command.split()!r}\n{COMMAND}", {"OTEL_ROLLOUT_SPOOL_DIR": str(path)}
    )
    assert ran.code in (1, 2)
    assert str(path) in ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert ran.out == ("[]\n" if "--json" in command else "")


def test_status_of_unreadable_directory_shows_the_reason(tmp_path: Path) -> None:
    """The reports of other directories are shown too."""
    for name in ("good", "damaged"):
        node_dir = layout.node_directory(tmp_path, name, "node")
        layout.create_private(node_dir, tmp_path)
        layout.write_manifest(node_dir, layout.Manifest(name, "project", ("console",)))
    (node_dir / "ledger.sqlite").symlink_to(tmp_path)
    ran = run(
        f"import sys; sys.argv[1:] = ['status', '--all']\n{COMMAND}",
        {"OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path)},
    )
    assert "ledger.sqlite is a link" in ran.out
    assert str(tmp_path / "good" / "node") in ran.out
    assert "Traceback" not in ran.err


@pytest.fixture(params=["ramfs", "tmpfs"])
def unlimited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a real file system that reports no free space, but accepts writes."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-o", "size=0,mode=700"] if request.param == "tmpfs" else ["-o", "mode=700"]
    subprocess.run(["mount", "-t", request.param, *options, "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_file_system_that_reports_no_free_space_is_recorded_in(
    unlimited: Path, fresh_process: None, test_exporters: None, tmp_path: Path
) -> None:
    """All spans, roots included, are recorded and delivered up to a fixed limit."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, spool_dir=str(unlimited))
    for _ in range(10):
        with rollout_trace_attr(step=1):
            rollout_trace_op(lambda: None)()
    active = runtime.current()
    assert active is not None
    assert active.writer._usage.limit == layout.LIMIT_OF_UNKNOWN_SPACE
    report = otel_rollout.shutdown(30)
    assert (report.recorded, report.dropped, report.sampled_out) == (20, {}, {})
    assert report.exporters["test-file"].delivered == 20
    finding = check_spool_directory(unlimited, "the spool")
    assert finding.verdict is Verdict.OK
    assert "unknown space free" in finding.found


class FileSystem(NamedTuple):
    """A result of statvfs."""

    f_frsize: int
    f_blocks: int
    f_bfree: int
    f_bavail: int


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("available", [0, 1, 1000])
@pytest.mark.parametrize("reserved", [0, 1, 1000])
@pytest.mark.parametrize("size", [0, 4096])
def test_default_limit_is_above_zero_on_any_file_system(
    size: int, reserved: int, available: int, user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any share of the disk reserved for root."""
    state = FileSystem(512, size, available + reserved, available)
    monkeypatch.setattr(layout.os, "statvfs", lambda path: state)
    monkeypatch.setattr(layout.os, "geteuid", lambda: user)
    limit = layout.default_limit(tmp_path)
    if size == 0:
        assert limit == layout.LIMIT_OF_UNKNOWN_SPACE
    else:
        assert limit == max(1, 512 * (available + (0 if user else reserved)) // 2)
