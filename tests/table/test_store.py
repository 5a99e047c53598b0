"""Tests of the table's store while somebody removes the table."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.table.errors import IncompleteListingError, TableError
from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of
from otel_rollout.table.store import Store
from tests.table.exactness import filled
from tests.table.tables import appended_rows, asked

_WRITER = "a"
_DELAYS = [0.0005 * number for number in range(40)]
"""Seconds between the start of a commit and the removal; a commit takes about 15 ms."""


def commit(store: Store, number: int) -> None:
    store.append([batch_of(appended_rows(_WRITER, number, 3))], _WRITER, number)


def test_table_removed_before_its_rows_are_written_is_a_temporary_error(tmp_path: Path) -> None:
    """The error says that another attempt may succeed, and the attempt begins the table anew."""
    store = Store(location_of(str(tmp_path / "table")))
    commit(store, 1)

    def rows_of_removed_table() -> Iterator[Any]:
        shutil.rmtree(tmp_path / "table")
        yield batch_of(appended_rows(_WRITER, 2, 3))

    with pytest.raises(TableError) as raised:
        store.append(rows_of_removed_table(), _WRITER, 2)
    assert raised.value.is_temporary
    commit(store, 2)
    assert asked(store, "SELECT DISTINCT step FROM spans") == [{"step": 2}]


def test_table_removed_at_any_moment_of_a_commit_is_a_temporary_error(tmp_path: Path) -> None:
    """No moment of the removal makes the writer give up."""
    for number, delay in enumerate(_DELAYS):
        table = tmp_path / str(number)
        store = Store(location_of(str(table)))
        commit(store, 1)
        removal = threading.Thread(target=remove_after, args=(delay, table))
        removal.start()
        assert problem_of(store, 2) in (None, "temporary"), delay
        removal.join()


def problem_of(store: Store, number: int) -> str | None:
    """Make a commit; return whether its error is temporary, or the message of another error."""
    try:
        commit(store, number)
    except TableError as error:
        return "temporary" if error.is_temporary else str(error)
    return None


def remove_after(seconds: float, table: Path) -> None:
    """Remove a table, in parts as another process would see it."""
    time.sleep(seconds)
    while table.exists():
        shutil.rmtree(table, ignore_errors=True)


def test_damaged_table_is_a_permanent_error(tmp_path: Path) -> None:
    """The writer does not try for ever."""
    store = Store(location_of(str(tmp_path / "table")))
    commit(store, 1)
    for entry in (tmp_path / "table" / "_delta_log").iterdir():
        entry.write_text("{")
    with pytest.raises(TableError, match="is damaged") as raised:
        commit(store, 2)
    assert not raised.value.is_temporary


def test_log_entry_that_a_listing_misses_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is not listed at one moment: a listing may have an entry and lack the one before it."""
    store = filled(tmp_path / "table", "a")
    entry = tmp_path / "table" / "_delta_log" / f"{2:020}.json"
    hidden = entry.rename(tmp_path / "hidden")
    with pytest.raises(IncompleteListingError, match="lacks an entry"):
        store.open()
    monkeypatch.setattr(time, "sleep", lambda _: hidden.rename(entry))
    assert store.open().version() == 3


def test_table_that_another_process_begins_meanwhile_is_no_foreign_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log may appear between two looks at the directory."""
    log = tmp_path / "rollouts" / "_delta_log"
    log.mkdir(parents=True)
    lexists = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda path: Path(path) != log and lexists(path))
    assert Store(location_of(str(log.parent))).opened_or_begun().version() == 0
