"""Compaction keeps every row exact, whoever dies, pauses or comes at once."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from otel_rollout.table import compaction, lease
from otel_rollout.table.data_files import FileReader
from otel_rollout.table.errors import TableError
from otel_rollout.table.lease import IMPORT, Lease, LeaseHeldError, LeaseLostError
from otel_rollout.table.location import location_of
from otel_rollout.table.store import Store
from otel_rollout.table.trajectory_store import DIRECTORY
from tests.soak import table as random_kills
from tests.table.exactness import (
    DEADLINE,
    Program,
    append,
    compact_beside_writers,
    filled,
    kill_at_every_point,
    live_files,
)
from tests.table.tables import all_rows, asked, root, row, written
from tests.waiting import wait_for
from tests.waits import set_waits


def files_on_disk(path: Path) -> set[str]:
    """Return the files of rows; a name that begins with an underscore is of something else."""
    found = (file.relative_to(path) for file in path.rglob("*.parquet"))
    return {str(file) for file in found if not any(part.startswith("_") for part in file.parts)}


def test_small_files_become_one_with_the_same_rows(tmp_path: Path) -> None:
    """Rows are sorted by run and step; the log has the bounds of their columns."""
    path = tmp_path / "table"
    store = filled(path, ("b", "a"))
    before = all_rows(path)
    done = compaction.compact(store, 0)
    assert (done.files_before, done.files_after) == (6, 1)
    assert all_rows(path) == before
    table = DeltaTable(str(path))
    least, most = (table.get_add_actions().column(name).to_pylist()[0] for name in ("min", "max"))
    assert (least["run_id"], most["run_id"], least["step"], most["step"]) == ("run-a", "run-b", 0, 2)
    assert least["start_time"] == min(each["start_time"] for each in before)
    order = asked(store, "SELECT run_id, step FROM stored_rows")
    assert [tuple(each.values()) for each in order] == sorted(tuple(each.values()) for each in order)


def test_compaction_without_small_files_rewrites_nothing(tmp_path: Path) -> None:
    """A file that is alone stays as it is."""
    path = tmp_path / "table"
    store = filled(path, "a")
    compaction.compact(store, 0)
    files = live_files(path)
    compaction.compact(store, 0)
    assert live_files(path) == files_on_disk(path) == files


def test_replaced_files_stay_for_the_retention(tmp_path: Path) -> None:
    """A reader that has opened the table before reads the rows as they were."""
    path = tmp_path / "table"
    store = filled(path, "a")
    opened = store.open()
    before = files_on_disk(path)
    compaction.compact(store)
    assert before < files_on_disk(path)
    assert len(opened.file_uris()) == 3
    assert {Path(uri).name for uri in opened.file_uris()} == before
    append(store, "a", [3])
    compaction.compact(store, 0)
    assert files_on_disk(path) == live_files(path)


def test_files_of_killed_processes_stay_for_a_week(tmp_path: Path) -> None:
    """They may be of a commit that is to come; those of stored trajectory rows go, too."""
    path = tmp_path / "table"
    store = filled(path, "a")
    compaction.compact(store, 0)
    days = {directory / f"{age}.parquet": age for directory in (path, path / DIRECTORY) for age in (6, 8)}
    for file, age in days.items():
        file.touch()
        os.utime(file, (time.time() - age * 86400,) * 2)
    compaction.compact(store, 0)
    assert {file for file in days if file.exists()} == {file for file, age in days.items() if age < 7}


def test_compaction_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full gets its room back."""
    path = tmp_path / "table"
    store = filled(path, "a")
    before = files_on_disk(path)

    def write_to_full_disk(*arguments: Any, **named: Any) -> None:
        write_deltalake(*arguments, **named)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("deltalake.write_deltalake", write_to_full_disk)
    with pytest.raises(TableError, match="No space left on device"):
        compaction.compact(store)
    assert files_on_disk(path) == before


def test_tables_log_stays_short(tmp_path: Path) -> None:
    """Entries of the log that are older than its retention go; the writers' numbers stay."""
    path = tmp_path / "table"
    store = filled(path, "a", 6)
    before = all_rows(path)
    store.open().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    compaction.compact(store, 0)
    append(store, "a", [6])
    compaction.compact(store, 0)
    assert len(list(path.glob("_delta_log/*.json"))) < 12
    assert [each for each in all_rows(path) if each["step"] < 6] == before
    assert store.committed("a") == 6


def test_rows_of_an_older_version_get_nulls(tmp_path: Path) -> None:
    """A file that lacks columns is merged with files that have them."""
    path = tmp_path / "table"
    from tests.delta.test_exactly_once import COLUMNS_OF_OLDER, begin_older

    begin_older(path, COLUMNS_OF_OLDER)
    store = Store(location_of(str(path)))
    append(store, "a", [0, 1])
    before = all_rows(path)
    compaction.compact(store, 0)
    assert all_rows(path) == before


@pytest.mark.parametrize("runs", [(), ("run-a",)], ids=["compact", "prune"])
def test_process_killed_at_every_point_leaves_the_rows_exact(tmp_path: Path, runs: tuple[str, ...]) -> None:
    """The next process takes over when the lease's time is up; a pruning is done as a whole or not at all."""
    kill_at_every_point(str(tmp_path / "table"), tmp_path / "table", tmp_path, runs)


def test_two_compactors_at_once_beside_eight_writers_keep_the_rows_exact(tmp_path: Path) -> None:
    """Both compact again and again; a pruning of another run happens between them."""
    compact_beside_writers(str(tmp_path / "table"), tmp_path, writers=8, commits=12)


def test_random_kills_leave_rows_that_verify_agrees_with() -> None:
    """Writers, two compactors and a pruning are killed and go on; `make soak` plays many such rounds."""
    assert random_kills.play(seed=1) > 0


def test_process_that_lost_its_lease_commits_nothing(tmp_path: Path) -> None:
    """A compactor pauses before its commit; another one takes the lease over, and then it goes on."""
    path = tmp_path / "table"
    store = filled(path, "a")
    before = all_rows(path)
    paused = Program(tmp_path, "replace_files", path, path, 1, "stop before the commit")
    wait_for(lambda: is_stopped(paused.process.pid), DEADLINE)
    assert Program(tmp_path, "replace_files", path, path, 60, "").ended()[0] == 0
    files = live_files(path)
    paused.process.send_signal(signal.SIGCONT)
    code, printed = paused.ended()
    assert code == 1
    assert printed == f"Another process has taken over the table at {path}: it does the rest.\n"
    assert all_rows(path) == before
    assert live_files(path) == files
    assert Lease.acquire(store) is not None  # the paused one has not kept it from others


def test_two_processes_that_ask_in_one_microsecond_do_not_share_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read the table before the first one commits."""
    store = filled(tmp_path / "table", "a")
    monkeypatch.setattr(lease, "_now", lambda: 1_800_000_000_000_000)
    second = Lease(store, None)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    first = Lease(store, None)
    first.commit()
    with pytest.raises(LeaseLostError, match="has taken over the table at"):
        second.commit()
    first.commit()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_files_that_another_program_has_replaced_are_not_replaced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program knows nothing of the lease: it compacts while rows are written."""
    path = tmp_path / "table"
    store = filled(path, "a")
    before = all_rows(path)
    rewritten = FileReader.rewritten

    def beside_another(*arguments: Any) -> Any:
        added = rewritten(*arguments)
        DeltaTable(str(path)).optimize.compact()
        return added

    monkeypatch.setattr(FileReader, "rewritten", beside_another)
    with pytest.raises(LeaseLostError, match="has replaced files of the table at"):
        compaction.compact(store, 0)
    assert all_rows(path) == before
    monkeypatch.undo()
    append(store, "a", [3])
    assert compaction.compact(store, 0).files_after == 1


def test_only_one_process_has_the_lease(tmp_path: Path) -> None:
    """The refusal names the holder and the time; a released lease is free at once."""
    store = filled(tmp_path / "table", "a")
    lease = Lease.acquire(store)
    with pytest.raises(LeaseHeldError, match=r"is being compacted or pruned by process \d+ on .+, which"):
        compaction.compact(store)
    lease.close()
    assert compaction.compact(store, 0).files_after == 1


def test_lease_of_an_import_is_kept_as_long_as_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is renewed before its time is over, keeps other imports out, and no compaction."""
    store = filled(tmp_path / "table", "a")
    set_waits(monkeypatch, lease=8.0)

    def until() -> int:
        return store.open().transaction_version(IMPORT.application) or 0

    with Lease.kept(store, IMPORT, pytest.fail):
        first = until()
        with pytest.raises(LeaseHeldError, match="is being imported into by process"):
            Lease.acquire(store, IMPORT)
        wait_for(lambda: until() > first, DEADLINE)
        compaction.compact(store, 0)
    Lease.acquire(store, IMPORT)


def test_table_with_features_of_others_is_refused(tmp_path: Path) -> None:
    """Rows may be deleted there without a change of their file."""
    path = tmp_path / "table"
    store = filled(path, "a")
    log = max(path.glob("_delta_log/*.json"))
    entry = '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["deletionVectors"],'
    entry += '"writerFeatures":["deletionVectors"]}}'
    log.write_text(log.read_text().rstrip() + "\n" + entry)
    with pytest.raises(TableError, match="use that program to compact or prune it"):
        compaction.compact(store)


def test_spans_without_run_and_step_are_compacted(tmp_path: Path) -> None:
    """Their columns are null."""
    path = tmp_path / "table"
    columns = {"run_id": None, "step": None}
    store = written(path, [root("1", **columns)], [row("2", "b", "a1", **columns)])
    before = all_rows(path)
    assert compaction.compact(store, 0).files_after == 1
    assert all_rows(path) == before
