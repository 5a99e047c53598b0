"""The root table: a trajectory that runs when its process dies ends as an error."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_rollout.deliver.crash_recovery import CrashRecovery, end_open_trajectories
from otel_rollout.otlp.scan import step_of
from otel_rollout.record import runtime
from otel_rollout.record.capture import trajectory as capture
from otel_rollout.spool import layout, root_table, segments
from otel_rollout.spool.journal import read_state
from otel_rollout.spool.locks import ForwarderLock
from otel_rollout.spool.root_table import MAX_LINE, SLOTS, read_open
from tests.forwarder.test_delivery import running
from tests.spool_reader import Recorded, read_directory
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


def killed(
    tmp_path: Path, count: int, extra: int = 0, name: str = "run", options: str = "{}"
) -> list[Recorded]:
    """Kill a process with open trajectories.

    Return the roots that crash recovery ends.
    """
    environment = {**os.environ, "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"), "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "tests.spool.programs.die_in_trajectories",
        str(count),
        str(extra),
        name,
        options,
    ]
    ran = subprocess.run(command, check=False, env=environment)
    assert ran.returncode == -signal.SIGKILL
    (journal,) = (tmp_path / "spool").rglob("*" + layout.JOURNAL_SUFFIX)
    writer = journal.name.removesuffix(layout.JOURNAL_SUFFIX)
    lock = ForwarderLock(journal.parent)
    try:
        wait_for(lock.acquire, what="the end of the forwarder that the process may have started")
        segments.repair(journal.parent, writer)
        end_open_trajectories(journal.parent, writer)
        return read_directory(tmp_path / "spool")
    finally:
        lock.close()


def check(roots: list[Recorded], count: int) -> None:
    assert sorted(root.attributes["rollout.sample_index"] for root in roots) == list(range(count))
    for root in roots:
        assert root.attributes["rollout.step"] == 4
        assert root.attributes["rollout.rollout_n"] == 2
        assert root.attributes["rollout.validate"] is True
        assert root.attributes["rollout.project_name"] == "project"
        assert root.attributes["openinference.span.kind"] == "AGENT"
        assert (root.span.status.code, root.span.status.message) == (
            2,
            "process ended before the trajectory did",
        )
        assert not root.span.parent_span_id
        assert root.span.end_time_unix_nano >= root.span.start_time_unix_nano > 0


@pytest.mark.parametrize("count", [1, SLOTS - 1, SLOTS, SLOTS + 1, 513, 1024, 5000])
def test_however_many_were_running_all_are_ended(tmp_path, count):
    """The table grows with them; each ends as an error, with identity and attributes."""
    roots = killed(tmp_path, count, extra=10)
    check(roots, count)
    assert {root.attributes["rollout.who"] for root in roots} == {"x" * 10}


@pytest.mark.parametrize("options", ["{}", '{"application": 1}'])
@pytest.mark.parametrize("extra", [0, 1500, 2040, MAX_LINE - 600, MAX_LINE, 100_000])
def test_however_long_its_facts_a_trajectory_is_ended(tmp_path, extra, options):
    """Attributes that do not fit the slot are omitted; the identity stays."""
    roots = killed(tmp_path, 3, extra=extra, options=options)
    check(roots, 3)
    for root in roots:
        assert root.attributes.get("rollout.who", "x" * extra) == "x" * extra
        assert ("rollout.who" in root.attributes) == (extra < MAX_LINE - 1200)


def test_trajectory_ends_with_the_last_sign_of_life_that_its_process_has_noted(tmp_path, monkeypatch):
    """A process that sleeps notes in its journal that it lives; of a copy nobody has seen a process."""
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(tmp_path / "spool"))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "spool")
    with running("tests.forwarder.programs.hang", "sleep"):
        journal = wait_for(lambda: next((tmp_path / "spool").rglob("*" + layout.JOURNAL_SUFFIX), None))
        wait_for(lambda: list(read_open(journal.with_suffix(layout.OPEN_SUFFIX))), what="the trajectory")
        began_ns = time.time_ns()
        wait_for(lambda: read_state(journal).alive_ns > began_ns + 2 * 10**9, what="a note after a while")
        copy = shutil.copytree(journal.parent, tmp_path / "copy")
    noted_ns = read_state(copy / journal.name).alive_ns
    assert CrashRecovery(copy).run().dead_are_complete
    *_, root = read_directory(copy)
    assert (root.name, root.span.end_time_unix_nano) == ("rollout_trace", noted_ns)


@pytest.mark.parametrize("long", ["é" * 3000, "\x01" * 3000])
def test_trajectory_with_long_names_is_ended(tmp_path, long):
    """Names that do not fit the slot are cut."""
    name = long.replace("\x01", "\x02")
    roots = killed(tmp_path, 1, name=name, options='{"experiment": "%s"}' % ("y" * 5000))
    check(roots, 1)
    (root,) = roots
    assert len(root.name) >= 32
    assert name.startswith(root.name)
    assert ("y" * 5000).startswith(root.attributes["rollout.experiment_name"])


def test_long_resource_leaves_room_for_the_identity(tmp_path, monkeypatch):
    """Resource attributes are omitted before the identity is."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=" + "z" * 20_000)
    check(killed(tmp_path, 2), 2)


def test_slots_are_used_again(recorded, tmp_path):
    """Thousands of trajectories one after another need no larger table."""
    for number in range(2000):
        with capture.rollout_trace_attr(step=number):
            pass
    (table,) = (tmp_path / "spool").rglob("*" + layout.OPEN_SUFFIX)
    assert table.stat().st_size == SLOTS * root_table.SLOT_BYTES
    assert list(read_open(table)) == []


def test_reader_sees_trajectories_that_ran_between_two_looks(recorded, tmp_path):
    """Each is read once after its end; running ones are read at each look."""
    seen: dict[int, int] = {}

    def steps_read() -> list[int]:
        (table,) = (tmp_path / "spool").rglob("*" + layout.OPEN_SUFFIX)
        return sorted(int(step_of(line).step) for line in read_open(table, seen))

    with capture.rollout_trace_attr(step=1000):
        for number in range(100):
            with capture.rollout_trace_attr(step=number):
                pass
        assert steps_read() == [*range(100), 1000]
        assert steps_read() == [1000]
        for number in range(200, 200 + SLOTS):
            with capture.rollout_trace_attr(step=number):
                pass
        assert steps_read() == [*range(201, 200 + SLOTS), 1000], "one slot is taken"
    assert steps_read() == []


def test_root_table_that_cannot_grow_costs_one_wait(recorded, tmp_path, monkeypatch, caplog):
    """On a full disk trajectories without slot are recorded when they end."""

    def full(*_):
        raise OSError(28, "No space left on device")

    with capture.rollout_trace_attr(step=0):
        pass
    monkeypatch.setattr(root_table.os, "posix_fallocate", full)
    running = [capture.rollout_trace_attr(step=number) for number in range(SLOTS + 200)]
    for trajectory in running:
        trajectory.__enter__()
    (table,) = (tmp_path / "spool").rglob("*" + layout.OPEN_SUFFIX)
    assert len(list(read_open(table))) == SLOTS
    for trajectory in reversed(running):
        trajectory.__exit__(None, None, None)
    assert len(recorded()) == SLOTS + 201
    assert (
        len([record for record in caplog.records if "are not visible until they end" in record.message]) == 1
    )
    assert runtime.current().writer.counts().drops == dict.fromkeys(
        runtime.current().writer.counts().drops, 0
    )
