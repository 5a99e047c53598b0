"""A table stays small by itself: a process beside training compacts it, and removes what is too old."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable

from otel_rollout.deliver import table_upkeep
from otel_rollout.deliver.forwarder import Forwarder
from otel_rollout.exporting.entry_points import home_table, load
from otel_rollout.settings import Settings
from otel_rollout.spool.locks import ForwarderLock
from otel_rollout.table import data_files, trajectory_store
from otel_rollout.table.lease import Lease
from otel_rollout.table.query import Engine
from tests.table.exactness import Program, append, filled, live_files
from tests.table.tables import all_rows
from tests.waiting import wait_for
from tests.waits import set_waits

MANY = table_upkeep._MANY_FILES
_IMPORTED = "import os; from otel_rollout.deliver import table_upkeep; table_upkeep."
_IDLE = _IMPORTED + "_is_core_free = lambda: True; "
_BUSY = _IMPORTED + "_idle_seconds = lambda: 0.0; "
_MAIN = "table_upkeep.main()"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Return the arguments of the processes that would be started on a machine with two cores."""
    found: list[Sequence[str]] = []
    monkeypatch.setattr(table_upkeep, "start_detached", lambda arguments, *_: found.append(arguments))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return found


def test_table_with_many_files_is_compacted_by_a_process(
    tmp_path: Path, started: list[Sequence[str]]
) -> None:
    """A table of a short run has a handful of files, and is left as it is; so is one that is compacted."""
    table = tmp_path / "table"
    store = filled(table, "a", MANY - 1)
    table_upkeep.start(tmp_path, str(table), "")
    assert started == []
    append(store, "a", [MANY])
    table_upkeep.start(tmp_path, str(table), "30d")
    assert started == [["-m", "otel_rollout.deliver.table_upkeep", str(table), "30d"]]
    before = all_rows(table)
    subprocess.run([sys.executable, "-c", _IDLE + _MAIN, str(table), ""], check=True)
    assert (len(live_files(table)), all_rows(table)) == (1, before)
    table_upkeep.start(tmp_path, str(table), "")
    assert len(started) == 1


def test_machine_with_one_core_compacts_nothing(
    tmp_path: Path, started: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training needs the core."""
    filled(tmp_path / "table", "a", MANY)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    table_upkeep.start(tmp_path, str(tmp_path / "table"), "")
    assert started == []


def test_busy_machine_leaves_the_table_to_the_next_process(tmp_path: Path) -> None:
    """The process waits for a free core for some minutes, at the lowest priority."""
    filled(tmp_path / "table", "a", MANY)
    busy = _BUSY + "os.nice = lambda by: print('nice', by); " + _MAIN
    arguments = [sys.executable, "-c", busy, str(tmp_path / "table"), ""]
    environment = {**os.environ, "_OTEL_ROLLOUT_WAITS": '{"free_core": 0.1, "core_look": 0.01}'}
    assert subprocess.run(arguments, check=True, env=environment, capture_output=True).stdout == b"nice 19\n"
    assert len(live_files(tmp_path / "table")) == MANY


def test_core_is_free_if_those_that_the_process_may_use_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other cores of the machine do is nothing to it: it may not use them."""
    idle: dict[frozenset[int], float] = {}
    for usable in ({0}, {0, 1}, set[int]()):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, usable=usable: usable)
        idle[frozenset(usable)] = table_upkeep._idle_seconds()
    assert idle[frozenset()] == 0 < idle[frozenset({0})] < idle[frozenset({0, 1})]
    monkeypatch.setattr(time, "sleep", lambda _: None)
    set_waits(monkeypatch, core_look=0.25)
    for seconds, is_free in ((0.2, False), (0.3, True)):
        monkeypatch.setattr(table_upkeep, "_idle_seconds", iter([100.0, 100.0 + seconds]).__next__)
        assert table_upkeep._is_core_free() == is_free


def test_files_that_no_compaction_would_change_are_not_new(
    tmp_path: Path, started: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are too large to be merged count until what their trajectories came to is stored."""
    table = tmp_path / "table"
    filled(table, "a", MANY)
    monkeypatch.setattr(data_files, "_BIN_BYTES", 1)
    table_upkeep.start(tmp_path, str(table), "")
    table_upkeep.tend(str(table), "")
    assert (len(started), len(live_files(table))) == (1, MANY)
    table_upkeep.start(tmp_path, str(table), "")
    assert len(started) == 1


def test_steps_that_are_too_old_go_from_a_table_of_few_files(
    tmp_path: Path, started: list[Sequence[str]]
) -> None:
    """Retention does not wait for a compaction; with one, what trajectories came to is stored once."""
    table = tmp_path / "table"
    filled(table, "a", 3)
    for keep in ("10000w", "1h"):
        table_upkeep.start(tmp_path, str(table), keep)
        table_upkeep.tend(str(table), keep)
    assert (len(started), all_rows(table)) == (1, [])
    assert DeltaTable(str(table / trajectory_store.DIRECTORY)).version() == 0


def test_process_that_finds_the_lease_taken_ends_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two never compact at once: the other one does it."""
    store = filled(tmp_path / "table", "a", MANY)
    lease = Lease.acquire(store)
    table_upkeep.tend(str(tmp_path / "table"), "")
    assert (len(live_files(tmp_path / "table")), caplog.records) == (MANY, [])
    lease.close()
    table_upkeep.tend(str(tmp_path / "table"), "")
    assert len(live_files(tmp_path / "table")) == 1


def test_failure_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next process tries again; whoever starts it leaves a table that cannot be read to delivery."""
    (tmp_path / "table").write_text("no table")
    table_upkeep.start(tmp_path, str(tmp_path / "table"), "")
    assert caplog.records == []
    table_upkeep.tend(str(tmp_path / "table"), "")
    (record,) = caplog.records
    assert record.getMessage() == (
        f"the table at {tmp_path / 'table'} is not compacted: {tmp_path / 'table'} is a file, and no table: "
        "name a directory."
    )


def test_steps_that_are_too_old_go_beside_a_writer_and_readers(tmp_path: Path) -> None:
    """What the table keeps is compacted; whoever has opened the table before reads all of its rows."""
    table = tmp_path / "table"
    store = filled(table, "a", MANY)
    opened = store.open()
    table_upkeep.tend(str(table), "10000w")
    assert (len(all_rows(table)), len(live_files(table))) == (4 * MANY, 1)
    writer = Program(tmp_path, "append_rows", table, 7, MANY, 5)
    try:
        for _ in range(3):
            table_upkeep.tend(str(table), "1h")
    finally:
        assert writer.ended()[0] == 0
    assert "run-a" not in {row["run_id"] for row in all_rows(table)}
    assert store.committed("a") == MANY - 1
    assert Engine(opened).count("stored_rows") == 4 * MANY
    table_upkeep.tend(str(table), "1h")
    assert all_rows(table) == []


def test_home_machine_alone_looks_after_the_table(tmp_path: Path) -> None:
    """Forwarders of other machines' directories do not, nor those whose exporters write no table."""
    exporters = {"delta": load("delta", {"uri": str(tmp_path / "table")})}
    here = Settings(node="here")
    assert home_table(tmp_path / "here", here, exporters) == str(tmp_path / "table")
    assert home_table(tmp_path / "there", here, exporters) is None
    assert home_table(tmp_path / "here", Settings(node="here", home_node="there"), exporters) is None
    assert home_table(tmp_path / "here", here, {}) is None


@pytest.mark.parametrize("is_wanted", [True, False], ids=["by default", "switched off"])
def test_forwarder_looks_after_the_table_from_time_to_time_and_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    """One setting switches that off, another one says how long the table keeps a step."""
    calls: list[tuple[Path, str, str]] = []
    monkeypatch.setattr(table_upkeep, "start", lambda *given: calls.append(given))
    set_waits(monkeypatch, table_upkeep=0.0)
    node_dir, table = tmp_path / "here", tmp_path / "table"
    node_dir.mkdir()
    lock = ForwarderLock(node_dir)
    assert lock.acquire()
    exporters = {"delta": {"uri": str(table)}}
    configured = Settings(exporters=exporters, node="here", delta_compact=is_wanted, delta_keep="30d")
    Forwarder(node_dir, configured, lock).run()
    assert set(calls) == ({(node_dir, str(table), "30d")} if is_wanted else set())
    if is_wanted:
        wait_for(lambda: len(calls) > 1, what="a look beside training")
