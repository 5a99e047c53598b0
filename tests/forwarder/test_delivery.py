"""Test delivery: each recorded span reaches the exporter once, despite failures."""

import contextlib
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from opentelemetry import trace

import otel_rollout
from otel_rollout import StepCount, StepKey, rollout_trace_attr, rollout_trace_op
from otel_rollout.account import ledger, ledger_reader
from otel_rollout.account.report import Report
from otel_rollout.deliver import delivery
from otel_rollout.deliver.retry_policy import WHOLE_ATTEMPTS
from otel_rollout.record import runtime
from otel_rollout.record.runs import membership
from otel_rollout.settings import SettingsError
from otel_rollout.spool import layout, segments
from otel_rollout.spool.locks import ForwarderLock
from tests.exporters import FileExporter
from tests.forwarders import wait_for_end
from tests.spool_reader import read_directory, tree
from tests.waiting import wait_for
from tests.waits import set_waits


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "delivered.jsonl"


@pytest.fixture
def faulty(fresh_process, test_exporters, target):
    """Switch tracing on, with an exporter that fails as the file ``*.fault`` says."""
    otel_rollout.configure({"test-faulty": {"path": str(target)}}, project_name="p", forwarder_linger=60)


def delivered(target: Path) -> Counter:
    """Count how often each span was delivered, by id and name."""
    lines = target.read_text().splitlines() if target.exists() else []
    return Counter(tuple(json.loads(line)[:2]) for line in lines)


def node_directory(tmp_path: Path) -> Path:
    (found,) = layout.node_directories(tmp_path / "spool")
    return found


def record(count: int, step: int = 1, name: str = "op") -> None:
    @rollout_trace_op(name=name)
    def call() -> None: ...

    with rollout_trace_attr(step=step):
        for _ in range(count):
            call()


@pytest.mark.usefixtures("forwarder")
def test_recorded_spans_are_delivered_once_and_counts_add_up(tracing, tmp_path):
    """shutdown() waits for delivery; counts add up in total and per step."""
    record(5, step=1)
    record(7, step=2)
    report = otel_rollout.shutdown(30)
    assert (report.started, report.recorded, report.open, report.dropped) == (14, 14, 0, {})
    count = report.exporters["test-file"]
    assert (count.delivered, count.rejected, count.pending, report.lost) == (14, 0, 0, 0)
    assert {key: c.delivered for key, c in report.by_step.items()} == {
        StepKey("1", False): 6,
        StepKey("2", False): 8,
    }
    assert set(delivered(tmp_path / "spool-delivered.jsonl").values()) == {1}
    assert report.undelivered == 0
    assert "14 spans recorded; 14 delivered to test-file, 0 pending; lost: 0" in report.summary()


@pytest.mark.usefixtures("forwarder")
def test_second_shutdown_returns_an_equal_report(tracing):
    """Nothing is recorded after the first shutdown()."""
    record(1)
    first = otel_rollout.shutdown(30)
    record(1)
    assert otel_rollout.shutdown(30) == first
    assert otel_rollout.status() == first


@pytest.mark.usefixtures("forwarder")
def test_configure_after_shutdown_begins_another_run(tracing, target):
    """The new run has a node directory of its own."""
    record(1)
    first = otel_rollout.shutdown(30)
    otel_rollout.configure({"test-file": {"path": str(target)}})
    record(1)
    second = otel_rollout.shutdown(30)
    assert second.recorded == 2
    assert first.directory != second.directory


def test_spans_wait_for_a_target_that_is_down(faulty, target, tmp_path, caplog):
    """Spans are pending, with a warning; when the target is back, each arrives once."""
    fault = Path(f"{target}.fault")
    fault.write_text("unavailable")
    with caplog.at_level(logging.WARNING, "otel_rollout"):
        record(3)
        wait_for(lambda: "as the test wishes" in caplog.text, what="a warning")
    report = otel_rollout.shutdown(0.5)
    count = report.exporters["test-faulty"]
    assert (report.recorded, count.delivered, count.pending, report.lost) == (4, 0, 4, 0)
    assert count.problem == "as the test wishes"
    assert {key: c.recorded for key, c in report.by_step.items()} == {StepKey("1", False): 4}
    fault.unlink()
    wait_for(lambda: otel_rollout.status().exporters["test-faulty"].delivered == 4, what="delivery")
    assert set(delivered(target).values()) == {1}
    recovered = otel_rollout.status().exporters["test-faulty"]
    assert (recovered.problem, recovered.retried >= count.retried > 0) == (None, True)


def test_failed_set_up_of_an_exporter_is_no_retry(fresh_process, test_exporters):
    """A forwarder sets the exporter up once, and a failure counts as no retry."""
    otel_rollout.configure({"test-file": {}})  # the exporter's required option is missing
    record(1)
    wait_for(lambda: otel_rollout.status().exporters["test-file"].is_refused, what="the refusal")
    assert otel_rollout.shutdown(1).exporters["test-file"].retried == 0


def test_a_target_that_is_too_slow_for_a_batch_is_given_less(faulty, target):
    """A target that is too slow for 500 spans gets smaller batches, and all spans."""
    Path(f"{target}.fault").write_text("unavailable 7")
    record(200)
    report = otel_rollout.shutdown(60)
    count = report.exporters["test-faulty"]
    assert (count.delivered, report.lost, set(delivered(target).values())) == (201, 0, {1})
    assert count.retried > WHOLE_ATTEMPTS


def test_rejected_span_goes_to_the_dead_letter_file_and_others_arrive(faulty, target, tmp_path):
    """A rejected batch is halved; the span at fault is kept with the target's reason."""
    record(40)
    record(1, name="poison")
    record(40)
    report = otel_rollout.shutdown(30)
    count = report.exporters["test-faulty"]
    assert (count.delivered, count.rejected, count.pending, report.lost) == (83, 1, 0, 0)
    (entry,) = (node_directory(tmp_path) / "rejected.test-faulty.jsonl").read_text().splitlines()
    assert json.loads(entry)["reason"] == "poison is not accepted"
    assert '"name":"poison"' in json.loads(entry)["line"]
    assert set(delivered(target).values()) == {1}


def test_dead_letter_file_holds_no_secret(faulty, target, tmp_path):
    """A rejected span is kept as recorded, with every part redacted."""
    secret = "ghp_" + "a1B2" * 9
    otel_rollout.configure(redact="secrets")
    with rollout_trace_attr(step=1), contextlib.suppress(ValueError):

        @rollout_trace_op(name="poison")
        def call(headers):
            trace.get_current_span().add_event("request", {"body": f"key:\n{secret}"})
            raise ValueError(f"refused:\n{secret}")

        call({"n": 1e22, "note": f"\t{secret}"})
    assert otel_rollout.shutdown(30).exporters["test-faulty"].rejected == 1
    entry = (node_directory(tmp_path) / "rejected.test-faulty.jsonl").read_text()
    assert json.loads(entry)["line"].count("[redacted]") >= 4
    assert secret not in entry + "".join(target.read_text())


def test_refused_exporter_keeps_its_spans_for_a_later_forwarder(faulty, target, monkeypatch):
    """Refused credentials end shutdown() early."""
    Path(f"{target}.fault").write_text("refused")
    record(3)
    report = otel_rollout.shutdown(3600)  # it would wait for an hour
    count = report.exporters["test-faulty"]
    assert (count.pending, count.problem, report.lost) == (4, "as the test wishes", 0)
    Path(f"{target}.fault").unlink()
    monkeypatch.setenv("OTEL_TEST_FILE", str(target))
    output = otel_rollout_command("forward", "--spool", report.directory)
    assert "4 delivered to test-faulty, 0 pending" in output
    assert len(delivered(target)) == 4


def otel_rollout_command(*arguments: str) -> str:
    command = [sys.executable, "-c", "from otel_rollout.cli import app; app()", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return ran.stdout


def test_unreadable_line_goes_to_the_dead_letter_file(faulty, tmp_path, target):
    """The line is counted as rejected, and later lines arrive."""
    record(1)
    active = runtime.current()
    active.writer.write(b'this is not "a span"\n')
    record(1)
    report = otel_rollout.shutdown(30)
    count = report.exporters["test-faulty"]
    assert (report.recorded, count.delivered, count.rejected, report.lost) == (5, 4, 1, 0)
    assert len((node_directory(tmp_path) / "rejected.test-faulty.jsonl").read_text().splitlines()) == 1


WORKER = "tests.forwarder.programs.worker"


def test_spans_of_killed_processes_arrive(faulty, target, tmp_path):
    """SIGKILL of writers loses no ended span, although no exit handler runs."""
    membership.decide()
    workers = [
        subprocess.Popen([sys.executable, "-m", WORKER, "100"], stdout=subprocess.PIPE) for _ in range(3)
    ]
    for worker in workers:
        with worker.stdout:
            assert worker.stdout.readline() == b"recorded\n"
        worker.kill()
        worker.wait()
    report = otel_rollout.shutdown(30)
    assert (report.started, report.recorded, report.open, report.unfinished) == (303, 303, 0, 0)
    assert report.exporters["test-faulty"].delivered == 303
    assert report.lost == 0
    counts = delivered(target)
    assert set(counts.values()) == {1}
    assert Counter(name for _, name in counts) == {"op": 300, "rollout_trace": 3}


def test_trajectory_of_a_killed_process_ends_as_an_error(faulty, target, tmp_path):
    """The root has its identity and a reason, and ends after the last recorded span."""
    membership.decide()
    worker = subprocess.Popen([sys.executable, "-m", WORKER, "3"], stdout=subprocess.PIPE)
    with worker.stdout:
        worker.stdout.readline()
    worker.kill()
    worker.wait()
    otel_rollout.shutdown(30)
    *operations, root = read_directory(node_directory(tmp_path))
    assert (root.name, root.span.status.code) == ("rollout_trace", 2)
    assert root.span.status.message == "process ended before the trajectory did"
    assert root.attributes["rollout.step"] == 1
    assert root.span.end_time_unix_nano >= max(op.span.end_time_unix_nano for op in operations)
    assert tree([root, *operations]) == {"rollout_trace": ["op"] * 3}


@pytest.mark.parametrize("how", ["sleep", "busy"])
def test_killed_trajectory_lasted_as_long_as_its_process_lived(faulty, target, tmp_path, how):
    """It hangs after its last span: in Python, or in C without a chance for another thread."""
    membership.decide()
    with running("tests.forwarder.programs.hang", how) as worker:
        wait_for(lambda: delivered(target), what="a forwarder that has seen the process")
        worker.stdin.write(b"\n")
        worker.stdin.flush()
        hung_ns = time.time_ns()
        wait_for(lambda: time.time_ns() > hung_ns + 3 * 10**9, what="a long hang")
    killed_ns = time.time_ns()
    otel_rollout.shutdown(30)
    *_, root = read_directory(node_directory(tmp_path))
    assert root.name == "rollout_trace"
    assert hung_ns + 10**9 < root.span.end_time_unix_nano <= killed_ns


@contextlib.contextmanager
def running(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, and kill it at the end."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("forwarder")
def test_running_trajectory_of_a_living_process_stays_open(tracing, tmp_path):
    """Only the death of a process makes crash recovery end its trajectories."""
    with rollout_trace_attr(step=1):
        record(1, step=2)
        wait_for(lambda: otel_rollout.status().exporters["test-file"].delivered == 2)
        report = otel_rollout.status()
        assert (report.started, report.recorded, report.open, report.unfinished) == (3, 2, 1, 0)
    assert otel_rollout.shutdown(30).recorded == 3


def forwarder_pid(node_dir: Path) -> int | None:
    """Return the process that holds the forwarder's lock, from the kernel's list."""
    inode = (node_dir / "forwarder.lock").stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}") and int(fields[4]) > 0:
            return int(fields[4])
    return None


def test_a_killed_forwarder_is_replaced(faulty, target, tmp_path, monkeypatch):
    """SIGKILL of the forwarder delays delivery and loses nothing."""
    set_waits(monkeypatch, first_check=0.1)
    Path(f"{target}.fault").write_text("unavailable")
    record(3)
    node_dir = wait_for(lambda: layout.node_directories(tmp_path / "spool"))[0]
    first = wait_for(lambda: forwarder_pid(node_dir), what="a forwarder")
    os.kill(first, signal.SIGKILL)
    Path(f"{target}.fault").unlink()
    record(3)
    report = otel_rollout.shutdown(30)
    assert report.exporters["test-faulty"].delivered == 8
    assert len(delivered(target)) == 8


def test_of_many_forwarders_one_gets_the_lock(faulty, target, tmp_path):
    """Of forwarders that are started at once, all but one exit at once."""
    Path(f"{target}.fault").write_text("unavailable")
    record(1)
    active = runtime.current()
    active.keeper.stop()
    node_dir = node_directory(tmp_path)
    first = wait_for(lambda: forwarder_pid(node_dir), what="a forwarder")
    others = [
        subprocess.Popen([sys.executable, "-m", "otel_rollout.forwarder", str(node_dir)]) for _ in range(8)
    ]
    assert [other.wait(30) for other in others] == [0] * 8
    assert forwarder_pid(node_dir) == first
    Path(f"{target}.fault").unlink()
    assert otel_rollout.shutdown(30).undelivered == 0
    assert set(delivered(target).values()) == {1}


def test_forwarder_exits_when_everything_is_delivered(faulty, tmp_path):
    """When no writer lives and nothing is pending, the forwarder exits."""
    record(1)
    assert otel_rollout.shutdown(30).undelivered == 0
    node_dir = node_directory(tmp_path)
    wait_for_end(node_dir)
    assert segments.living_writers(node_dir) == set()


def test_forwarder_exits_after_its_linger_time(fresh_process, test_exporters, target, tmp_path):
    """The forwarder tries an unavailable target for ``forwarder_linger`` seconds."""
    Path(f"{target}.fault").write_text("unavailable")
    otel_rollout.configure({"test-faulty": {"path": str(target)}}, forwarder_linger=1)
    record(1)
    otel_rollout.shutdown(0.5)
    node_dir = node_directory(tmp_path)
    wait_for_end(node_dir)
    assert otel_rollout.status().exporters["test-faulty"].pending == 2


def test_delivery_survives_a_locked_ledger(tracing, tmp_path, monkeypatch):
    """A ledger that cannot be written delays delivery and loses nothing."""
    set_waits(monkeypatch, longest_retry=0.05, ledger=0.05)
    record(1)
    active = runtime.current()
    active.keeper.stop()
    assert active.writer.flush(10)
    node_dir = node_directory(tmp_path)
    exporter = FileExporter(str(tmp_path / "second.jsonl"))
    ledger.Ledger(node_dir).close()
    with closing(sqlite3.connect(node_dir / ledger_reader.FILE, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        delivering = delivery.Delivery("second", exporter, node_dir)
        delivering.start()
        wait_for(lambda: (tmp_path / "second.jsonl").exists(), what="a first attempt")
        holder.execute("ROLLBACK")
    wait_for(delivering.is_caught_up, what="delivery")
    delivering.stop(10)


def test_exiting_program_waits_for_delivery(fresh_process, test_exporters, target, tmp_path):
    """A program configured by variables, without shutdown(), loses nothing."""
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "test-file", "OTEL_TEST_FILE": str(target)}
    command = [sys.executable, "-m", WORKER, "10", "0"]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    assert sum(delivered(target).values()) == 11


def test_credentials_are_not_written_to_the_spool(
    fresh_process, test_exporters, target, tmp_path, monkeypatch
):
    """Options and variables reach the forwarder, and no spool file holds them."""
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "planted-secret-1")
    options = {"path": str(target), "token": "planted-secret-2"}
    otel_rollout.configure({"test-file": options})
    record(1)
    assert otel_rollout.shutdown(30).undelivered == 0
    node_dir = node_directory(tmp_path)
    wait_for_end(node_dir)
    for path in (tmp_path / "spool").rglob("*"):
        if path.is_file():
            assert b"planted-secret" not in path.read_bytes()
            assert path.stat().st_mode & 0o077 == 0, f"{path} is readable by others"


def test_spool_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    """The directory's owner could read or replace recorded spans."""
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(layout.os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="OTEL_ROLLOUT_SPOOL_DIR"):
        layout.create_private(tmp_path / "run" / "node", tmp_path)


@pytest.mark.usefixtures("forwarder")
def test_node_directory_of_another_user_is_left_alone(tracing, tmp_path, monkeypatch, caplog):
    """Another user cannot have spans delivered with this user's credentials."""
    record(1)
    otel_rollout.shutdown(30)
    assert layout.node_directories(tmp_path / "spool") == [node_directory(tmp_path)]
    monkeypatch.setattr(layout.os, "geteuid", lambda: 12345)
    assert layout.node_directories(tmp_path / "spool") == []
    assert "it is left alone" in caplog.text


def test_processes_that_look_for_a_forwarder_keep_none_from_starting(tmp_path):
    """Processes that test the lock do not look like forwarders, and do not block one."""
    tmp_path.chmod(0o700)
    command = [sys.executable, "-m", "tests.forwarder.programs.look_for_forwarder", str(tmp_path)]

    def looking() -> list[subprocess.Popen]:
        lookers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        for looker in lookers:
            assert looker.stdout.readline() == "looking\n"
        return lookers

    for looker in looking():
        with looker:
            assert looker.stdout.read() == "0\n"
    lookers, acquired = looking(), []
    lock = ForwarderLock(tmp_path)
    while any(looker.poll() is None for looker in lookers):
        acquired.append(lock.acquire())
        lock.release()
    lock.close()
    for looker in lookers:
        looker.stdout.close()
    assert set(acquired) == {True}


def test_lock_is_held_by_one_forwarder(tmp_path):
    """The lock can be acquired again after it was released."""
    first, second = ForwarderLock(tmp_path), ForwarderLock(tmp_path)
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    first.close()
    second.close()


@pytest.mark.usefixtures("forwarder")
def test_status_command_shows_the_report_of_the_api(tracing, tmp_path):
    """The command prints the report as a table or as JSON."""
    record(2)
    report = otel_rollout.shutdown(30)
    (found,) = json.loads(otel_rollout_command("status", "--json"))
    assert (found["recorded"], found["lost"], found["exporters"]["test-file"]["delivered"]) == (3, 0, 3)
    (step,) = found["steps"]
    assert (step["step"], step["validate"]) == ("1", False)
    assert {name: count for name, count in step.items() if count} == {
        "step": "1", "started": 3, "recorded": 3, "delivered": 3,
    }  # fmt: skip
    assert report.directory == found["directory"]
    assert "test-file" in otel_rollout_command("status")


def refuse_step_2(text: str) -> str:
    """Fail to redact spans of step 2; OTEL_ROLLOUT_REDACT names this function."""
    if '"intValue":"2"' in text:
        raise ValueError("not this one")
    return text


@pytest.mark.usefixtures("forwarder")
def test_dropped_spans_are_shown_by_step(tracing, monkeypatch):
    """The report of a step counts recorded, delivered and dropped spans, by reason."""
    otel_rollout.configure(redact="tests.forwarder.test_delivery:refuse_step_2")
    record(2, step=1)
    record(3, step=2)
    report = otel_rollout.shutdown(30)
    assert (report.recorded, report.dropped) == (3, {"redaction": 4})
    assert report.by_step == {
        StepKey("1", False): StepCount(recorded=3, delivered=3),
        StepKey("2", False): StepCount(dropped={"redaction": 4}),
    }
    assert Counter(report.dropped) == sum((Counter(c.dropped) for c in report.by_step.values()), Counter())
    monkeypatch.setenv("COLUMNS", "200")
    shown = otel_rollout_command("status", "--steps")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert [row for row in rows if row[0] in ("1", "2")] == [
        ["1", "3", "3", "0", "0", "0", "3", "0", "0", "0"],
        ["2", "4", "0", "4", "0", "0", "0", "0", "0", "0"],
    ]


def within(*steps: int, then: Callable[[], object]) -> None:
    """Call ``then`` in nested trajectories, one per step, each with an operation."""
    with rollout_trace_attr(step=steps[0]):
        inside = (lambda: within(*steps[1:], then=then)) if len(steps) > 1 else then
        rollout_trace_op(name="under way")(inside)()


@pytest.mark.usefixtures("forwarder")
def test_open_and_unfinished_spans_are_counted_by_step(tracing, tmp_path):
    """For each step: started = recorded + dropped + open + unfinished."""

    def killed(*steps: int) -> None:
        if child := os.fork():
            os.waitpid(child, 0)
        else:
            within(*steps, then=lambda: os.kill(os.getpid(), signal.SIGKILL))

    record(1, step=1)  # starts a forwarder: a killed process may not get to that
    killed(2)
    killed(3, 4)
    # The forwarder ends the trajectories of dead processes; these then count as recorded.
    wait_for(lambda: otel_rollout.status().exporters["test-file"].delivered == 5, what="ended trajectories")
    reports: list[Report] = []
    within(1, then=lambda: reports.append(otel_rollout.status()) or reports[0].by_step)
    (report,) = reports
    assert report.by_step == {
        StepKey("1", False): StepCount(recorded=2, delivered=2, open=2),
        StepKey("2", False): StepCount(recorded=1, delivered=1, unfinished=1),
        StepKey("3", False): StepCount(recorded=1, delivered=1),
        StepKey("4", False): StepCount(recorded=1, delivered=1),
        StepKey("other steps", False): StepCount(unfinished=2),
    }
    assert (report.started, report.open, report.unfinished) == (10, 2, 3)
    assert sum(count.started for count in report.by_step.values()) == report.started


def test_configure_refuses_an_unknown_exporter(fresh_process):
    """The error names the unknown exporter, and those that are installed."""
    with pytest.raises(SettingsError, match=r"'nonsense'.*OTEL_TRACES_EXPORTER.*mlflow"):
        otel_rollout.configure("nonsense")
