"""Recording processes that fork, are many, die, and whose clock is set: each span arrives, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from otel_rollout.account.ledger import read_ledger
from tests.faults.forwarding import node_directory
from tests.faults.job import PATH, Job
from tests.faults.target import Receiver
from tests.forwarder.test_delivery import forwarder_pid
from tests.waiting import wait_for

TIMEOUT = 300


def run(variables: dict[str, str], code: str) -> str:
    """Run a program; what it printed."""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**variables, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def wait_for_delivery(node_dir: Path, number: int) -> None:
    """Until so many spans are delivered and noted as such: a forwarder killed then repeats nothing."""
    wait_for(lambda: read_ledger(node_dir).done("otlp") == number, seconds=120, what="delivery")


FORKS_WHILE_WRITING = """
import os, threading
from otel_rollout import rollout_trace_attr, rollout_trace_op
import otel_rollout

stop = threading.Event()

def write(thread, count=0):
    while not stop.is_set():
        rollout_trace_op(name=f"parent.{thread}.{count}")(lambda: "x" * 2000)()
        count += 1
    written[thread] = count

written = [0] * 4
threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
with rollout_trace_attr(name="parent", step=1):
    for thread in threads:
        thread.start()
    for number in range(30):
        child = os.fork()
        if child == 0:  # the parent's lock, journal and segment are in the middle of something
            with rollout_trace_attr(name=f"child.{number}", step=1):
                rollout_trace_op(name=f"child.{number}.0")(lambda: None)()
            os._exit(0)
        os.waitpid(child, 0)
    stop.set()
    for thread in threads:
        thread.join()
report = otel_rollout.shutdown(120)
print(sum(written), report.recorded, report.lost, report.open, report.unfinished, report.dropped)
"""


def test_forks_during_writes_lose_nothing(variables: dict[str, str], receiver: Receiver) -> None:
    """Thirty forks while four threads write: no child hangs, none writes into its parent's files.

    Lost: nothing, but what a busy disk has made the journal refuse, which is counted. Doubled: nothing.
    """
    written, recorded, lost, opened, unfinished, dropped = run(variables, FORKS_WHILE_WRITING).split(" ", 5)
    drops = sum(eval(dropped).values())
    assert int(recorded) + drops == int(written) + 1 + 60
    assert (lost, opened, unfinished) == ("0", "0", "0")
    assert sum(receiver.names.values()) == len(receiver.names) == int(recorded)
    children = {f"child.{n}{end}" for n in range(30) for end in ("", ".0")}
    assert children <= set(receiver.names)


SIXTY_FOUR_WRITERS = """
import os, signal
import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.runs import membership

membership.decide()
children = []
for number in range(64):
    child = os.fork()
    if child == 0:
        with rollout_trace_attr(name=f"{number}", step=number % 4):
            for count in range(50):
                rollout_trace_op(name=f"{number}.{count}")(lambda: None)()
            if number % 4 == 0:  # in the middle of its trajectory
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
report = otel_rollout.shutdown(200)
print(report.started, report.recorded, report.lost, report.open, report.unfinished, report.dropped)
"""


def test_sixty_four_processes_that_record_at_once_lose_nothing(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """Sixty-four processes record at once, a quarter of them is killed. Lost: nothing. Doubled: nothing."""
    assert run(variables, SIXTY_FOUR_WRITERS).split(" ", 5) == ["3264", "3264", "0", "0", "0", "{}\n"]
    expected = [f"{n}.{count}" for n in range(64) for count in range(50)] + [f"{n}" for n in range(64)]
    assert receiver.names == Counter(expected)


OUTLIVED = """
import os, signal, sys, time
from otel_rollout import rollout_trace_attr, rollout_trace_op, runtime
from otel_rollout.launch import launcher
from otel_rollout.runs import directory
trajectory = rollout_trace_attr(name="parent", step=1)
trajectory.__enter__()
rollout_trace_op(name="parent.0")(lambda: None)()
while not launcher.forwarder_runs(directory.node_directory(runtime.current().settings)):
    # Else nobody is there to see the parent's end.
    time.sleep(0.02)
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    with rollout_trace_attr(name="child", step=1):
        rollout_trace_op(name="child.0")(lambda: None)()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_writer_that_its_forked_child_outlives_is_completed(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """The parent counts as dead though its child lives: what it left is completed at once.

    Lost: nothing. Doubled: nothing; the child ends nothing of its parent's.
    """
    node_directory(variables)
    command = [sys.executable, "-c", OUTLIVED]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**variables, "PYTHONPATH": PATH}
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert parent.wait() == -signal.SIGKILL
            wait_for(lambda: receiver.names["parent"] == 1, seconds=120, what="the parent's end")
            os.kill(child, 0)  # it lives
            parent.stdin.write(b"\n")
            parent.stdin.flush()
            wait_for(lambda: receiver.names["child"] == 1, seconds=120, what="the child's spans")
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
    assert receiver.names == Counter(["parent", "parent.0", "child", "child.0"])


def test_changes_of_the_clock_lose_nothing(
    variables: dict[str, str], receiver: Receiver, tmp_path: Path
) -> None:
    """Hours forth and back while trajectories run and forwarders die: nobody is taken for dead or for old.

    Lost: nothing. Doubled: nothing. No span ends before it began.
    """
    clock = tmp_path / "clock"
    clock.write_text("0")
    node_dir = node_directory(variables)
    variables["OTEL_TEST_CLOCK"] = str(clock)
    expected: list[str] = []
    with Job(variables) as job:
        for number, ahead in enumerate((0, 7200, -10_800, 86_400, -86_400)):
            clock.write_text(str(ahead))
            expected += job.record(f"steady-{number}", 3)
            wait_for_delivery(node_dir, len(expected))
            os.kill(wait_for(lambda: forwarder_pid(node_dir), what="a forwarder"), signal.SIGKILL)
        expected += job.ask("across", "across", str(clock))
        report = job.ask("shutdown", 120)
    assert (report["recorded"], report["lost"], report["open"]) == (len(expected), 0, 0)
    assert set(receiver.names) == set(expected)
    assert receiver.backwards == []
    assert set(receiver.names.values()) == {1}


def test_two_jobs_with_one_spool_use_their_own_credentials(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """Two jobs share a spool and a target, and not a token: each one's forwarder uses its own.

    Lost: nothing. Doubled: nothing.
    """
    tokens = ("Bearer of-the-first", "Bearer of-the-second")
    with (
        Job({**variables, "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization={tokens[0]}"}) as first,
        Job({**variables, "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization={tokens[1]}"}) as second,
    ):
        of_first, of_second = first.record("first", 20), second.record("second", 20)
        reports = [job.ask("shutdown", 120) for job in (first, second)]
    assert [report["lost"] for report in reports] == [0, 0]
    assert receiver.names == Counter([*of_first, *of_second])
    assert receiver.credentials == {
        **dict.fromkeys(of_first, tokens[0]),
        **dict.fromkeys(of_second, tokens[1]),
    }


def test_span_that_target_rejects_is_rejected_alone(variables: dict[str, str], receiver: Receiver) -> None:
    """A target that refuses each request with that span in it gets all others; it is set aside, with reason.

    Lost: nothing. Doubled: nothing.
    """
    receiver.poison = "poison"
    with Job(variables) as job:
        expected = job.record("before", 1500)
        job.record("poison", 0)
        expected += job.record("after", 1500)
        report = job.ask("shutdown", 200)
    count = report["exporters"]["otlp"]
    assert (count["delivered"], count["rejected"], count["pending"], report["lost"]) == (3002, 1, 0, 0)
    assert receiver.names == Counter(expected)
    (entry,) = (Path(report["place"]) / "rejected.otlp.jsonl").read_text().splitlines()
    assert "400" in entry
    assert '\\"name\\":\\"poison\\"' in entry


def test_span_of_fifty_megabytes_arrives_or_is_rejected_alone(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """It arrives, and its neighbours with it; where a target takes no such request it alone is set aside.

    Lost: nothing. Doubled: nothing.
    """
    node_dir = node_directory(variables)
    with Job(variables) as job:
        expected = job.record("before", 2)
        assert job.ask("huge", "huge", 50 << 20)
        expected += job.record("after", 2)
        wait_for(lambda: receiver.names["after"], seconds=120, what="delivery")
        assert receiver.names == Counter([*expected, "huge"])
        assert receiver.sizes["huge"] > 50 << 20

        receiver.limit = 20 << 20
        assert job.ask("huge", "refused", 50 << 20)
        expected += job.record("last", 2)
        report = job.ask("shutdown", 120)
    assert receiver.names == Counter([*expected, "huge"])
    assert (report["exporters"]["otlp"]["rejected"], report["lost"]) == (1, 0)
    assert (node_dir / "rejected.otlp.jsonl").stat().st_size > 50 << 20
