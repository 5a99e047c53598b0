"""Test processes that fork or die, and clock changes: each span arrives once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from otel_rollout.account.ledger_reader import read_ledger
from tests.faults.forwarding import node_directory
from tests.faults.job import PATH, Job
from tests.faults.target import Receiver
from tests.forwarder.test_delivery import forwarder_pid
from tests.waiting import wait_for

TIMEOUT = 300


def run(variables: dict[str, str], program: str) -> str:
    """Run a program of tests/programs; return what it printed."""
    ran = subprocess.run(
        [sys.executable, "-m", f"tests.programs.{program}"],
        env={**variables, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def wait_for_delivery(node_dir: Path, number: int) -> None:
    """Wait until ``number`` spans are recorded as delivered.

    A forwarder that is killed after that sends none of them again.
    """
    wait_for(lambda: read_ledger(node_dir).total("otlp").done == number, seconds=120, what="delivery")


def test_forks_during_writes_lose_nothing(variables: dict[str, str], receiver: Receiver) -> None:
    """Thirty forks happen while four threads write; no child hangs or interferes.

    Lost: only spans that the journal refused on a busy disk, and they are counted. Doubled: nothing.
    """
    written, recorded, lost, opened, unfinished, dropped = run(variables, "fork_while_writing").split(" ", 5)
    drops = sum(eval(dropped).values())
    assert int(recorded) + drops == int(written) + 1 + 60
    assert (lost, opened, unfinished) == ("0", "0", "0")
    assert sum(receiver.names.values()) == len(receiver.names) == int(recorded)
    children = {f"child.{n}{end}" for n in range(30) for end in ("", ".0")}
    assert children <= set(receiver.names)


def test_sixty_four_processes_that_record_at_once_lose_nothing(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """A quarter of the processes is killed. Lost: nothing. Doubled: nothing."""
    assert run(variables, "sixty_four_writers").split(" ", 5) == ["3264", "3264", "0", "0", "0", "{}\n"]
    expected = [f"{n}.{count}" for n in range(64) for count in range(50)] + [f"{n}" for n in range(64)]
    assert receiver.names == Counter(expected)


def test_writer_that_its_forked_child_outlives_is_completed(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """The parent counts as dead while its child lives: its files are completed.

    Lost: nothing. Doubled: nothing; the child ends no span of its parent.
    """
    node_directory(variables)
    command = [sys.executable, "-m", "tests.programs.outlived_by_child"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**variables, "PYTHONPATH": PATH}
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert parent.wait() == -signal.SIGKILL
            wait_for(lambda: receiver.names["parent"] == 1, seconds=120, what="the parent's end")
            os.kill(child, 0)  # raises if the child does not live
            parent.stdin.write(b"\n")
            parent.stdin.flush()
            wait_for(lambda: receiver.names["child"] == 1, seconds=120, what="the child's spans")
        except BaseException:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            raise
    assert receiver.names == Counter(["parent", "parent.0", "child", "child.0"])


def test_changes_of_the_clock_lose_nothing(
    variables: dict[str, str], receiver: Receiver, tmp_path: Path
) -> None:
    """The clock changes by hours; no living writer is taken for dead.

    Lost: nothing. Doubled: nothing. No span ends before it starts.
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
    """Two jobs with different tokens share a spool; each forwarder uses its job's.

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
    """The target gets all other spans; the dead-letter file has the reason.

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
    (entry,) = (Path(report["directory"]) / "rejected.otlp.jsonl").read_text().splitlines()
    assert "400" in entry
    assert '\\"name\\":\\"poison\\"' in entry


def test_span_of_fifty_megabytes_arrives_or_is_rejected_alone(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """The span arrives; if the target limits requests, only that span is rejected.

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
