"""Test damaged and shared spools: whole lines arrive, other lines are counted."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from otel_rollout.account import ledger_reader
from otel_rollout.spool import layout, segments
from tests.faults.forwarding import forward, nobody_forwards, node_directory, record_and_die
from tests.faults.job import Job
from tests.faults.target import Receiver
from tests.waiting import wait_for


def the_segment(node_dir: Path) -> Path:
    (name,) = layout.segments(node_dir)
    return node_dir / name.file


def complete(node_dir: Path) -> None:
    """Complete the files of dead writers, like a forwarder that then dies."""
    for writer in layout.journals(node_dir):
        segments.repair(node_dir, writer)
        segments.discard_buffers(node_dir, writer)


def set_aside(node_dir: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (node_dir / "rejected.otlp.jsonl").read_text().splitlines()]


def test_truncated_segment_is_completed_from_its_journal(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """The journal has the missing end of a segment. Lost: nothing. Doubled: nothing."""
    node_dir = node_directory(variables)
    expected = record_and_die(variables, node_dir, count=50)
    os.truncate(the_segment(node_dir), 10_000)
    report = forward(variables, node_dir)
    assert receiver.names == Counter(expected)
    assert (report.recorded, report.lost) == (len(expected), 0)


@pytest.mark.parametrize("with_journal", [True, False])
def test_truncated_segment_without_journal_delivers_its_whole_lines(
    variables: dict[str, str], receiver: Receiver, with_journal: bool
) -> None:
    """The segment was cut after its journal was freed, or copied without a journal.

    Lost: the lines that were cut off; with a journal, the report has their number. Doubled: nothing.
    """
    node_dir = node_directory(variables)
    record_and_die(variables, node_dir, count=50)
    complete(node_dir)
    segment = the_segment(node_dir)
    os.truncate(segment, 10_000)
    whole = segment.read_bytes().count(b"\n")
    assert 0 < whole < 50
    assert not segment.read_bytes().endswith(b"\n")
    if not with_journal:
        for path in node_dir.glob("*" + layout.JOURNAL_SUFFIX):
            path.unlink()
    report = forward(variables, node_dir)
    assert receiver.names == Counter(f"first.{number}" for number in range(whole))
    assert report.exporters["otlp"].delivered == whole
    assert report.lost == (103 - whole if with_journal else 0)


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_flipped_bits_reject_only_damaged_lines(variables: dict[str, str], receiver: Receiver) -> None:
    """Twenty bits of a segment flip; readable lines arrive, others are rejected.

    Lost: the damaged lines; the dead-letter file has each with the reason. Doubled: nothing.
    """
    node_dir = node_directory(variables)
    expected = record_and_die(variables, node_dir, count=100)
    complete(node_dir)
    segment = the_segment(node_dir)
    data, chance = segment.read_bytes(), random.Random(8)
    places = [chance.randrange(len(data)) for _ in range(20)]
    torn_number = data.index(b'"rollout.step","value":{"intValue":"') + len(
        '"rollout.step","value":{"intValue":"'
    )
    damaged = data
    for at in places:
        damaged = flipped(damaged, at, chance.randrange(8))
    damaged = damaged[:torn_number] + b"\n" + damaged[torn_number + 1 :]
    segment.write_bytes(damaged)
    lines = data.splitlines(keepends=True)
    ends = [sum(map(len, lines[: number + 1])) for number in range(len(lines))]
    hit = {next(n for n, end in enumerate(ends) if at < end) for at in [*places, torn_number]}
    order = [*(f"first.{n}" for n in range(100)), "first", *(f"second.{n}" for n in range(100)), "second"]
    untouched = {name for number, name in enumerate(order) if number not in hit and number + 1 not in hit}
    assert len(untouched) > 100

    report = forward(variables, node_dir)
    assert set(receiver.names.values()) == {1}
    assert untouched <= set(receiver.names)
    count = report.exporters["otlp"]
    assert count.pending == 0
    assert count.rejected == len(set_aside(node_dir)) > 5
    assert count.delivered + count.rejected + report.lost >= report.recorded == len(expected) - 1


def test_damaged_table_of_open_trajectories_loses_only_damaged_entries(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """Readable entries end as errors, and segments are delivered.

    Lost: the fact that the damaged trajectories were running. Doubled: nothing.
    """
    node_dir = node_directory(variables)
    with nobody_forwards(node_dir), Job(variables) as job:
        job.ask("open", "one")
        job.ask("open", "two")
        (table,) = node_dir.glob("*" + layout.OPEN_SUFFIX)
        data = table.read_bytes()
        at = data.index(b'"name":"one"')
        table.write_bytes(data[:at] + b"\0" + data[at + 1 :])
    report = forward(variables, node_dir)
    assert receiver.names == Counter(["one.0", "two.0", "two"])
    assert (report.unfinished, report.lost) == (1, 0)


def test_lines_of_newer_version_arrive_without_unknown_fields(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """A line that is no trace data is in the dead-letter file."""
    node_dir = node_directory(variables)
    expected = record_and_die(variables, node_dir)
    complete(node_dir)
    segment = the_segment(node_dir)
    newer = segment.read_bytes().splitlines()[0].replace(b"first.0", b"newer.0")
    newer = newer.replace(b'{"resourceSpans":[{', b'{"format":9,"resourceSpans":[{"entityRefs":[1],')
    newer = newer.replace(b'"name":"newer.0"', b'"name":"newer.0","profile":{"a":1}')
    with segment.open("ab") as file:
        file.write(newer + b'\n{"resourceProfiles":[{"novel":true}]}\n')
    report = forward(variables, node_dir)
    assert set(receiver.names) == {*expected, "newer.0"} - {"unended"}
    assert set(receiver.names.values()) == {1}
    assert report.exporters["otlp"].rejected == len(set_aside(node_dir)) == 1


def test_journal_of_newer_version_stays_unchanged(variables: dict[str, str], receiver: Receiver) -> None:
    """Segments are delivered; the journal stays for a version that can read it."""
    node_dir = node_directory(variables)
    record_and_die(variables, node_dir)
    (journal,) = node_dir.glob("*" + layout.JOURNAL_SUFFIX)
    newer = b"ORJRNL99" + journal.read_bytes()[8:]
    journal.write_bytes(newer)
    forward(variables, node_dir)
    assert {"first", "second"} <= set(receiver.names)
    assert journal.read_bytes() == newer


def test_ledger_of_another_version_is_renamed_and_delivery_starts_over(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """Spans in segments arrive. Doubled: spans that were delivered before."""
    node_dir = node_directory(variables)
    expected = record_and_die(variables, node_dir)
    with closing(sqlite3.connect(node_dir / ledger_reader.FILE)) as other:
        other.executescript("CREATE TABLE cursor (exporter, segment, position); PRAGMA user_version = 99")
    report = forward(variables, node_dir)
    assert (set(receiver.names), report.exporters["otlp"].delivered) == (set(expected), len(expected))
    assert len(list(node_dir.glob("unreadable-*." + ledger_reader.FILE))) == 1


def overwritten(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(random.Random(1).randbytes(size))


def overwritten_behind_its_header(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(100)
        file.write(random.Random(1).randbytes(size - 100))


def with_nonsense_in_both_files(path: Path) -> None:
    overwritten(path)
    log = path.with_name(path.name + "-wal")
    if log.exists():  # SQLite removes it when the last connection is closed
        overwritten(log)


def of_another_database(path: Path) -> None:
    other = path.with_name("other")
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE thing (name)")
    path.write_bytes(other.read_bytes())


DAMAGES = {
    "overwritten": overwritten,
    "overwritten behind its header": overwritten_behind_its_header,
    "overwritten, and its log": with_nonsense_in_both_files,
    "its log alone": lambda path: overwritten(path.with_name(path.name + "-wal")),
    "replaced by little": lambda path: path.write_bytes(b"nonsense"),
    "empty": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "another database": of_another_database,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_long_used", [False, True])
def test_ledger_damaged_during_delivery_is_replaced_without_loss(
    variables: dict[str, str], receiver: Receiver, damage: str, is_long_used: bool
) -> None:
    """The damaged ledger is renamed; a new one gets the forwarder's counts.

    Lost: nothing. Doubled: nothing.
    """
    node_dir = node_directory(variables)
    path = node_dir / ledger_reader.FILE
    with Job(variables) as job:
        expected = job.record("before", 20)
        read = ledger_reader.read_ledger
        wait_for(lambda: read(node_dir).total("otlp").done == len(expected), what="delivery")
        if is_long_used:  # the latest changes are in the file itself
            with closing(sqlite3.connect(path)) as other:
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        DAMAGES[damage](path)
        expected += job.record("after", 20)
        wait_for(lambda: receiver.names["after"], what="what came after")
        report = job.ask("shutdown", 60)
    assert receiver.names == Counter(expected)
    count = report["exporters"]["otlp"]
    assert (report["recorded"], count["delivered"], count["pending"], report["lost"]) == (42, 42, 0, 0)


def test_spool_of_dead_container_is_completed_by_process_with_its_pid(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """A container dies; the job's next attempt has an equal run id and pid.

    Lost: nothing. Doubled: nothing. Trajectories that the first attempt left open end as errors.
    """
    first_process = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    node_dir = node_directory(variables)
    with nobody_forwards(node_dir), Job(variables, within=first_process) as job:
        expected = job.record("first", 3)
        job.ask("open", "unended")
    wait_for(lambda: not segments.living_writers(node_dir), what="the end of the container")
    with Job(variables, within=first_process) as job:
        expected += job.record("second", 3)
        report = job.ask("shutdown", 120)
    pids = [writer.partition("-")[0] for writer in layout.journals(node_dir)]
    assert len(pids) == 2
    assert len(set(pids)) == 1
    assert receiver.names == Counter([*expected, "unended", "unended.0"])
    assert (report["recorded"], report["lost"], report["unfinished"]) == (10, 0, 0)


def test_spool_shared_by_two_nodes_is_delivered_once(variables: dict[str, str], receiver: Receiver) -> None:
    """Each machine's forwarder delivers only spans of its own processes.

    One job is killed, and its node completes its files. Lost: nothing. Doubled: nothing.
    """
    nodes = {name: dict(variables) for name in ("a", "b")}
    for name, its_variables in nodes.items():
        node_directory(its_variables, name)
    with Job(nodes["a"]) as here, Job(nodes["b"]) as there:
        expected = [*here.record("here", 20), *there.record("there", 20)]
        here.ask("open", "unended")
        here.kill()
        report = there.ask("shutdown", 120)
        assert (report["recorded"], report["lost"]) == (21, 0)
    expected += ["unended", "unended.0"]
    wait_for(lambda: sum(receiver.names.values()) >= len(expected), seconds=120, what="delivery")
    assert receiver.names == Counter(expected)
