"""`otel-rollout status --check`: what a probe is answered, of real spools and of odd ones."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import otel_rollout
from otel_rollout.account import ledger_reader
from otel_rollout.cli.main import app
from otel_rollout.doctor import delivery
from otel_rollout.record.launch import launcher
from otel_rollout.spool import journal, layout
from tests.cli.command import COMMAND, run
from tests.forwarder.test_delivery import forwarder_pid, node_directory, record
from tests.forwarders import end_forwarders, forwarders, wait_for_end
from tests.waiting import wait_for
from tests.waits import set_waits

LIMITS = delivery.AlarmLimits(max_age=600, max_bytes=1e9, min_free=0, spool_limit=0)


def probe(*arguments: object, code: int = 0) -> str:
    """Run the command in this process, with limits that a busy machine's disk keeps; return its output."""
    options = [] if "--min-free" in arguments else ["--min-free", 0]
    ran = CliRunner().invoke(app, ["status", "--check", *map(str, (*options, *arguments))])
    assert ran.exit_code == code, ran.output
    return ran.output


def checks_of(output: str) -> list[str]:
    """Return the checks that the lines name."""
    return [line.partition(":")[0] for line in output.splitlines()]


def contents(node_dir: Path) -> dict[str, bytes]:
    """Return the content of all files, except of that in which SQLite keeps the locks of readers."""
    return {
        str(path.relative_to(node_dir)): path.read_bytes()
        for path in node_dir.rglob("*")
        if path.is_file() and path.name != ledger_reader.FILE + "-shm"
    }


@pytest.fixture
def down(fresh_process: None, test_exporters: None, target: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that records 4 spans for a target with a fault and returns the node directory."""

    def start(fault: str = "unavailable") -> Path:
        target.with_name(target.name + ".fault").write_text(fault)
        otel_rollout.configure({"test-faulty": {}}, forwarder_linger=60)
        record(3)
        node_dir: Path = wait_for(lambda: layout.node_directories(tmp_path / "spool"), what="a run")[0]

        def problem() -> str | None:
            return otel_rollout.status().exporters["test-faulty"].problem

        wait_for(problem, what="the target's problem")
        return node_dir

    return start


@pytest.fixture
def orphaned(down: Callable[[str], Path], target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a node directory with 4 pending spans, whose forwarder was killed after the program's end."""
    with pytest.MonkeyPatch.context() as patched:
        set_waits(patched, idle=600.0)  # the forwarder does not see the program's end: journals stay whole
        node_dir = down("unavailable")
        wait_for(lambda: forwarder_pid(node_dir), what="a forwarder")
        # A later one would take the place of the killed one, and complete the journals before its own end.
        patched.setattr(launcher, "start_detached", lambda *_: None)
        otel_rollout.shutdown(0)

    def killed() -> bool:  # with those that came too late for the lock, and would take it now
        end_forwarders(node_dir)
        return not forwarders(node_dir) and not launcher.forwarder_runs(node_dir)

    wait_for(killed, what="the forwarders' end")
    target.with_name(target.name + ".fault").unlink()
    set_waits(monkeypatch, missing_forwarder=0.0)
    return node_dir


def test_machine_without_a_spool_is_healthy(tmp_path: Path) -> None:
    """Before the first run there is nothing to deliver; a spool that is named must exist."""
    assert probe() == f"healthy: 0 runs in {tmp_path / 'spool'}\n"
    missing = tmp_path / "missing"
    assert probe("--spool", missing, code=1) == f"spool: {missing} does not exist: check --spool\n"
    missing.write_text("in its place")
    assert checks_of(probe("--spool", missing, code=1)) == ["spool"]
    assert probe("--spool", tmp_path) == f"healthy: 0 runs in {tmp_path}\n"


def test_delivered_run_is_healthy_and_is_left_as_it_is(archived: Path) -> None:
    """The command answers within its time, and changes neither files nor counts."""

    before = contents(archived)
    assert run("status", "--check", "--min-free", 0).startswith("healthy: 1 run in ")
    assert contents(archived) == before


def test_probe_leaves_the_ledger_and_the_log_of_a_killed_forwarder(orphaned: Path) -> None:
    """SQLite would copy the log into the ledger and remove it; the log's counts are read all the same."""
    log = orphaned / (ledger_reader.FILE + "-wal")
    assert log.stat().st_size
    before = contents(orphaned)
    assert checks_of(probe(code=1)) == ["forwarder"]
    assert contents(orphaned) == before
    read = ledger_reader.read_ledger(orphaned, writes_nothing=True)
    assert read.failures["test-faulty"].message == "as the test wishes"
    assert read == ledger_reader.read_ledger(orphaned)
    assert not log.exists()  # the last reader that may write has copied it


def test_command_in_the_environment_of_a_run_does_not_act_as_its_program(
    orphaned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an exporter and the run's id in variables, as on Slurm, it delivers nothing and starts nothing."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "test-faulty")
    monkeypatch.setenv("OTEL_ROLLOUT_RUN_ID", orphaned.parent.name)
    before = contents(orphaned)
    assert checks_of(run("status", "--check", "--min-free", 0, code=1)) == ["forwarder"]
    assert contents(orphaned) == before
    assert not forwarders(orphaned)


def test_ledger_that_changes_while_it_is_read_is_read_again(
    archived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forwarder that starts meanwhile may copy its log into the file under the reader."""
    read, tried = ledger_reader._read, 0

    def changed(path: Path, busy_timeout: float, mode: str) -> ledger_reader.LedgerState:
        nonlocal tried
        tried += 1
        os.utime(path, ns=(tried, tried))
        if tried == 1:
            raise sqlite3.DatabaseError("database disk image is malformed")
        return read(path, busy_timeout, mode)

    expected = ledger_reader.read_ledger(archived)
    monkeypatch.setattr(ledger_reader, "_read", changed)
    assert ledger_reader.read_ledger(archived, writes_nothing=True) == expected
    assert tried == 4


def test_running_program_whose_target_answers_is_healthy(tracing: None) -> None:
    """While spans are recorded and delivered, each probe is answered with 0."""
    for _ in range(5):
        record(20)
        assert checks_of(probe()) == ["healthy"]


def test_backlog_is_unhealthy_by_age_and_by_size_and_says_why(down: Callable[[str], Path]) -> None:
    """A target that is down for a moment is healthy; beyond a limit, the line names its problem."""
    node_dir = down("unavailable")
    assert checks_of(probe()) == ["healthy"]
    for limit in ("--max-age", "--max-pending"):
        output = probe(limit, 0, code=1)
        assert checks_of(output) == ["backlog"]
        assert f" kB pending for test-faulty in {node_dir}, the oldest for " in output
        assert "(as the test wishes)" in output
    assert checks_of(probe("--only", "forwarder,disk", "--max-age", 0)) == ["healthy"]


def test_refused_credentials_are_unhealthy_at_once(down: Callable[[str], Path]) -> None:
    """Nothing but a person changes this, so no age is waited for."""
    down("refused")
    output = probe(code=1)
    assert checks_of(output) == ["refused"]
    assert "test-faulty takes nothing from " in output
    assert "as the test wishes" in output


@pytest.mark.usefixtures("fresh_process")
def test_misspelt_exporter_is_unhealthy_with_a_command_that_delivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice has the option of another exporter, after one full stop."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "dleta")
    record(1)
    otel_rollout.shutdown(30)
    node_dir = node_directory(tmp_path)
    output = probe(code=1)
    assert checks_of(output) == ["refused"]
    advice = f"Correct this, and deliver with: `otel-rollout forward --to delta --spool {node_dir}`."
    assert output.endswith(f"opentelemetry_traces_exporter. {advice}\n")


def test_pending_spans_without_a_forwarder_are_unhealthy_until_delivered(orphaned: Path) -> None:
    """The line has the command that delivers, which makes the spool healthy."""
    output = probe("--only", "forwarder", code=1)
    assert checks_of(output) == ["forwarder"]
    assert output.endswith(f"`otel-rollout forward --spool {orphaned}`.\n")
    run("forward", "--spool", orphaned)
    assert checks_of(probe()) == ["healthy"]


def test_forwarder_has_time_to_be_replaced(orphaned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that are pending for less than the successor needs are healthy."""
    set_waits(monkeypatch, missing_forwarder=60.0)
    assert checks_of(probe()) == ["healthy"]


def test_spans_that_are_only_in_a_dead_writers_journal_are_pending(orphaned: Path) -> None:
    """A program that is killed before its segment is written leaves spans that a forwarder delivers."""
    (segment,) = layout.segments(orphaned)
    os.truncate(orphaned / segment.file, 0)
    assert checks_of(probe(code=1)) == ["forwarder"]
    run("forward", "--spool", orphaned)
    assert checks_of(probe()) == ["healthy"]


def overwrite(path: Path, at: int, content: bytes) -> None:
    """Overwrite bytes of a file in place."""
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(content)


def cut_ring(path: Path) -> None:
    """Remove a journal's ring, as is done when its segments are complete."""
    os.truncate(path, journal.HEADER_BYTES)


JOURNAL_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "overwritten": (lambda path: path.write_bytes(b"x" * 20_000), "is no journal"),
    "cut off": (lambda path: os.truncate(path, 100), "is no journal"),
    "wiped": (lambda path: overwrite(path, 0, bytes(journal.HEADER_BYTES)), "is no journal"),
    "counts": (lambda path: overwrite(path, 16, b"\xff" * 32), "contradict each other"),
}


@pytest.mark.parametrize("damage", JOURNAL_DAMAGE)
def test_damaged_journal_of_a_finished_run_is_unhealthy(orphaned: Path, damage: str) -> None:
    """Its last spans and its counts are lost, which no dead-letter file says."""
    (path,) = orphaned.glob("*.journal")
    do, found = JOURNAL_DAMAGE[damage]
    do(path)
    output = probe("--only", "damaged", code=1)
    assert checks_of(output) == ["damaged"]
    assert str(path) in output
    assert found in output
    assert checks_of(probe("--only", "rejected")) == ["healthy"]


def test_damaged_journal_of_a_delivered_run_is_unhealthy(archived: Path) -> None:
    """The header that stays after delivery has the run's counts."""
    assert checks_of(probe()) == ["healthy"]
    path = next(archived.glob("*.journal"))
    overwrite(path, 0, b"?")
    assert checks_of(probe(code=1)) == ["damaged"]


@pytest.mark.parametrize("content", [b"", bytes(journal.HEADER_BYTES)])
def test_journal_whose_process_died_while_it_made_the_file_is_healthy(archived: Path, content: bytes) -> None:
    """Nothing was recorded with it."""
    (archived / "1-0123456789abcdef.journal").write_bytes(content)
    assert checks_of(probe()) == ["healthy"]


SEGMENT_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "overwritten": (lambda path: path.write_bytes(os.urandom(1000)), "has no span at byte 0"),
    "zeros": (lambda path: overwrite(path, 0, bytes(path.stat().st_size)), "has no span at byte 0"),
}


@pytest.mark.parametrize("damage", SEGMENT_DAMAGE)
def test_damaged_segment_of_a_finished_run_is_unhealthy_at_once(orphaned: Path, damage: str) -> None:
    """Nobody has to wait until a forwarder writes what it cannot read to the dead-letter file."""
    (segment,) = layout.segments(orphaned)
    do, found = SEGMENT_DAMAGE[damage]
    do(orphaned / segment.file)
    output = probe("--only", "damaged", code=1)
    assert f"{orphaned / segment.file} {found}" in output.splitlines()[0]


def test_segment_that_lost_what_its_journal_no_longer_holds_is_unhealthy(orphaned: Path) -> None:
    """A file that was cut after its writer's end is completed from the journal, while that has the bytes."""
    (segment,), (ring,) = layout.segments(orphaned), orphaned.glob("*.journal")
    cut_ring(ring)
    assert checks_of(probe("--only", "damaged")) == ["healthy"]
    os.truncate(orphaned / segment.file, (orphaned / segment.file).stat().st_size - 10)
    output = probe("--only", "damaged", code=1)
    assert f"{orphaned / segment.file} lacks 10 bytes" in output


def test_segment_shorter_than_its_cursor_is_unhealthy(orphaned: Path) -> None:
    """A target has more of the segment than the file; other targets will never get it."""
    (segment,) = layout.segments(orphaned)
    with closing(sqlite3.connect(orphaned / ledger_reader.FILE)) as db, db:
        db.execute("REPLACE INTO cursor VALUES ('test-faulty', ?, ?)", (segment.stem, 1 << 30))
    output = probe("--only", "damaged", code=1)
    assert "fewer than the 1073741824 that were delivered" in output


def test_earlier_segment_that_ends_within_a_span_is_unhealthy(orphaned: Path) -> None:
    """Only the newest segment of a writer may end so: its process may have been killed in a write."""
    (segment,) = layout.segments(orphaned)
    path = orphaned / segment.file
    whole = path.read_bytes()
    earlier = orphaned / layout.SegmentName(segment.writer, segment.sequence - 1).file
    earlier.write_bytes(whole)
    assert checks_of(probe("--only", "damaged")) == ["healthy"]
    os.truncate(earlier, len(whole) - 1)
    assert f"{earlier} ends within a span" in probe("--only", "damaged", code=1)


def test_age_is_that_of_the_first_pending_line(orphaned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pending span's end counts, but a run is not older than its first process."""
    now = time.time()
    monkeypatch.setattr(delivery.time, "time", lambda: now + 1000)
    (found,), _ = delivery.check_delivery(orphaned, delivery.AlarmLimits(2000, 1e9, 0, 0))
    seconds = float(found.found.rpartition(" for ")[2].removesuffix(" s"))
    assert 1000 <= seconds < 1000 + 120
    os.utime(orphaned / layout.MANIFEST, (now + 990, now + 990))
    (found,), _ = delivery.check_delivery(orphaned, delivery.AlarmLimits(2000, 1e9, 0, 0))
    assert found.found.endswith("the oldest for 10 s")


def test_dead_letters_are_unhealthy_until_their_file_is_removed(
    fresh_process: None, test_exporters: None, target: Path, tmp_path: Path
) -> None:
    """The line names the file, and how to deliver it."""
    otel_rollout.configure({"test-faulty": {}})
    record(1, name="poison")
    otel_rollout.shutdown(30)
    file = node_directory(tmp_path) / "rejected.test-faulty.jsonl"
    output = probe(code=1)
    assert checks_of(output) == ["rejected"]
    assert f"otel-rollout replay {file} --to test-faulty" in output
    file.unlink()
    assert checks_of(probe()) == ["healthy"]


def test_dropped_spans_are_unhealthy_while_the_run_records(
    fresh_process: None, test_exporters: None, target: Path, tmp_path: Path
) -> None:
    """After the run nobody can act on them, so a spool that no process records in is healthy."""
    otel_rollout.configure({"test-file": {}}, spool_limit=1)
    wait_for(lambda: record(50) or otel_rollout.status().dropped, what="dropped spans")
    output = probe("--only", "dropped", code=1)
    assert checks_of(output) == ["dropped"]
    assert " spool_limit" in output
    otel_rollout.shutdown(30)
    wait_for_end(tmp_path / "spool")
    ended = shutil.copytree(tmp_path / "spool", tmp_path / "ended")  # without the locks of this process
    assert checks_of(probe("--spool", ended)) == ["healthy"]


def test_nearly_full_disk_and_spool_are_unhealthy(
    down: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than the share that is to be free, or segments near the run's limit."""
    node_dir = down("unavailable")
    assert checks_of(probe("--min-free", 100, code=1)) == ["disk"]
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_LIMIT", str(layout.segment_bytes(node_dir)))
    output = probe(code=1)
    assert checks_of(output) == ["disk"]
    assert f"{node_dir} has " in output


def test_segment_that_is_delivered_and_removed_meanwhile_is_healthy(
    orphaned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forwarder at work removes files under the probe, which is no problem of the spool."""
    (segment,) = layout.segments(orphaned)
    place_of = delivery.place_of

    def removed(path: Path, position: int) -> tuple[int, int]:
        place = place_of(path, position)
        path.unlink()
        return place

    monkeypatch.setattr(delivery, "place_of", removed)
    assert checks_of(probe()) == ["healthy"]
    assert not (orphaned / segment.file).exists()


def test_probe_of_a_large_backlog_reads_little(orphaned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer does not wait for terabytes of pending spans, nor for a locked ledger."""
    set_waits(monkeypatch, ledger=3600)
    (segment,) = layout.segments(orphaned)
    os.truncate(orphaned / segment.file, 8 << 40)  # a sparse file, which takes an hour to read
    assert sorted(checks_of(probe(code=1))) == ["backlog", "forwarder"]
    with closing(sqlite3.connect(orphaned / ledger_reader.FILE)) as db:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        output = probe(code=1)
    assert checks_of(output) == ["spool"]
    assert "locked" in output


def test_misspelt_check_is_told_with_the_one_that_is_meant() -> None:
    """`--only` says which check is meant, and which there are."""
    output = " ".join(probe("--only", "damage", code=2).replace("│", " ").split())
    assert "--only: There is no check 'damage'. Did you mean 'damaged'? Checks: spool, damaged," in output


@pytest.mark.parametrize("arguments", [("--only", "speed"), ("--only", ","), ("--json",), ("--watch",)])
def test_wrong_options_are_refused(arguments: tuple[str, ...]) -> None:
    """A probe that asks for something unknown fails with the status of wrong usage."""
    probe(*arguments, code=2)


def test_option_of_the_check_without_it_is_refused() -> None:
    """`--only` alone would show what nobody asked for."""
    assert CliRunner().invoke(app, ["status", "--only", "disk"]).exit_code == 2


ODD_OBJECTS: dict[str, Callable[[Path], object]] = {
    "directory": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "empty file": lambda path: path.write_bytes(b""),
    "nothing": lambda path: None,
}
FILES = ["run.json", "ledger.sqlite", "forwarder.lock", "rejected.test-faulty.jsonl", "*.jsonl", "*.journal"]


@pytest.mark.parametrize("odd", ODD_OBJECTS)
@pytest.mark.parametrize("name", FILES)
def test_odd_object_in_place_of_a_file_is_no_traceback(orphaned: Path, odd: str, name: str) -> None:
    """Whatever lies in place of a file of the spool, the command answers with 0 or 1 and whole lines."""
    for path in [*orphaned.glob(name)] or [orphaned / name]:
        path.unlink(missing_ok=True)
        ODD_OBJECTS[odd](path)
    ran = CliRunner().invoke(app, ["status", "--check", "--min-free", "0"])
    assert ran.exit_code in (0, 1), ran.output
    assert set(checks_of(ran.output)) <= {*delivery.CHECKS, "healthy"}


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    contents=st.dictionaries(
        st.sampled_from(
            ["run.json", "ledger.sqlite", "1-0000000000000000.000001.jsonl", "1-0000000000000000.journal"]
        ),
        st.binary(max_size=300) | st.just(b'{"run_id":"r","project_name":"p","exporters":["x"]}'),
    ),
    cut=st.integers(0, 5000),
)
def test_odd_content_is_no_traceback(tmp_path: Path, contents: dict[str, bytes], cut: int) -> None:
    """Files of any content, also cut-off ones, give findings, and never an error."""
    spool = tmp_path / "odd"
    shutil.rmtree(spool, ignore_errors=True)
    node_dir = spool / "run" / "node"
    node_dir.mkdir(parents=True, mode=0o700)
    for name, content in contents.items():
        (node_dir / name).write_bytes(content[:cut])
    found, runs = delivery.check_delivery(spool, LIMITS)
    assert runs == ("run.json" in contents)
    assert {each.check for each in found} <= set(delivery.CHECKS)


def test_probe_loads_no_large_library(orphaned: Path) -> None:
    """A command that runs every few seconds takes the time of Python's start and little more."""
    python, *command = COMMAND
    timed = [python, "-X", "importtime", *command, "status", "--check", "--max-age", "0"]
    ran = subprocess.run(timed, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in ran.stderr.splitlines()}
    assert "sqlite3" in loaded, "the ledger is read"
    assert loaded & {"arro3", "deltalake", "duckdb", "mlflow", "numpy", "pyarrow", "ray", "weave"} == set()
