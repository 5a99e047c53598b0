"""Remove whole training steps of runs from a table: by age, by run, or until the rest is small enough."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_rollout.base.suggest import did_you_mean
from otel_rollout.table.compaction import clean, settle, store_trajectories
from otel_rollout.table.data_files import DataFile, FileReader, bins, files_of
from otel_rollout.table.errors import TableError
from otel_rollout.table.filters import any_of, equals
from otel_rollout.table.lease import Lease
from otel_rollout.table.query import Engine
from otel_rollout.table.store import Store

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

_COUNTED: Final = (
    "file, run_id, of_step, count(*) AS rows, sum(count(*)) OVER (PARTITION BY file) AS rows_of_file, "
    "max(start_ns) AS newest_ns"
)
_TRAJECTORIES: Final = "SELECT run_id, step, count(*) AS number FROM roots GROUP BY run_id, step"


class Unit(NamedTuple):
    """What is kept or removed as a whole: one step of a run, with the scores that were given later.

    Attributes:
        run_id: the run; None for rows without a run.
        step: the trajectory's step, also for its spans that name another step; None without a step.
    """

    run_id: str | None
    step: int | None

    @property
    def order(self) -> tuple[str, int]:
        """Key that sorts steps by run and number. Rows without a run or step come first."""
        return self.run_id or "", -1 if self.step is None else self.step


class Share(NamedTuple):
    """The rows of a step in one file.

    Attributes:
        file: the file.
        unit: the step.
        rows: number of rows; a span that was delivered twice has two.
        trajectories: number of the step's trajectories if this is its first file; else 0.
        newest_ns: start of the newest span, Unix time in nanoseconds.
        size: estimated bytes: the rows' part of the file.
    """

    file: DataFile
    unit: Unit
    rows: int
    trajectories: int
    newest_ns: int
    size: int


Shares = list[Share]
Choice = Callable[[Shares], set[Unit]]
"""Chooses the steps to remove."""


def older_than(time_ns: int) -> Choice:
    """Choose the steps whose newest span began before a time."""
    return lambda shares: {unit for unit, newest in _newest(shares).items() if newest < time_ns}


def of_runs(runs: Iterable[str]) -> Choice:
    """Choose the steps of runs."""
    wanted = set(runs)

    def choose(shares: Shares) -> set[Unit]:
        known = {share.unit.run_id or "" for share in shares}
        for run in sorted(wanted - known):
            raise TableError(f"There is no run {run!r} in the table.{did_you_mean(run, known)}")
        return {share.unit for share in shares if share.unit.run_id in wanted}

    return choose


def beyond(size: int) -> Choice:
    """Choose the oldest steps, until the rest of the files has at most ``size`` bytes."""

    def choose(shares: Shares) -> set[Unit]:
        sizes: dict[Unit, int] = defaultdict(int)
        for share in shares:
            sizes[share.unit] += share.size
        left, chosen = sum(sizes.values()), set()
        for unit, _ in sorted(_newest(shares).items(), key=lambda item: (item[1], item[0].order)):
            if left <= size:
                break
            left -= sizes[unit]
            chosen.add(unit)
        return chosen

    return choose


def preview(store: Store, choice: Choice) -> tuple[Shares, Shares]:
    """Return what a pruning would remove, and what it would leave.

    Raises:
        TableError: the table cannot be read, or a run is not in it.
    """
    table = store.open()
    return _divided(FileReader(store, table, has_steps=True), table, files_of(store, table), choice)


def prune(store: Store, choice: Choice, retention_hours: int) -> Shares:
    """Remove steps in one commit; return what was removed. Files stay on disk for the retention.

    Forwarders may append meanwhile.

    Args:
        store: the table.
        choice: chooses the steps.
        retention_hours: hours for which replaced files stay.

    Raises:
        LeaseHeldError: another process compacts or prunes.
        LeaseLostError: another process has taken over, because this one paused for minutes.
        TableError: the table cannot be read or written, or a run is not in it.
    """
    with closing(Lease.acquire(store)) as lease:
        gone = remove(store, choice, lease)
        table = store.open()
        store_trajectories(store, table, {file.path for file in files_of(store, table)}, retention_hours)
        clean(store, retention_hours)
    return gone


def remove(store: Store, choice: Choice, lease: Lease) -> Shares:
    """Remove steps in one commit of the lease's holder; see :func:`prune`."""
    table = store.open()
    reader = FileReader(store, table, has_steps=True)
    gone, kept = _divided(reader, table, files_of(store, table), choice)
    chosen, left = {share.unit for share in gone}, {share.file.path for share in kept}
    added: list[AddAction] = []
    for each in bins(file for file in _files(gone) if file.path in left):
        added += reader.rewritten(each, f"({_condition(chosen)}) IS NOT TRUE")
        lease.renew()
    if gone:
        lease.commit([file.removal(is_change=True) for file in _files(gone)], added)
        settle(store, added)
    return gone


def _divided(
    reader: FileReader, table: DeltaTable, files: Iterable[DataFile], choice: Choice
) -> tuple[Shares, Shares]:
    """Divide the rows of files into those of the chosen steps, and the others."""
    shares = _shares(reader, table, files)
    chosen = choice(shares)
    gone = [share for share in shares if share.unit in chosen]
    return gone, [share for share in shares if share.unit not in chosen]


def _shares(reader: FileReader, table: DeltaTable, files: Iterable[DataFile]) -> Shares:
    """Count the rows of each step in each file, and its trajectories."""
    numbers = {Unit(row["run_id"], row["step"]): row["number"] for row in Engine(table).dicts(_TRAJECTORIES)}
    found: Shares = []
    for each in bins(files):
        for row in reader.select(each, _COUNTED, "run_id, of_step"):
            file, unit = each[row["file"]], Unit(row["run_id"], row["of_step"])
            size = round(file.size * row["rows"] / row["rows_of_file"])
            found.append(Share(file, unit, row["rows"], numbers.pop(unit, 0), row["newest_ns"], size))
    return sorted(found, key=lambda share: (share.file.path, share.unit.order))


def _newest(shares: Shares) -> Mapping[Unit, int]:
    """Return the start of each step's newest span."""
    newest: dict[Unit, int] = {}
    for share in shares:
        newest[share.unit] = max(share.newest_ns, newest.get(share.unit, 0))
    return newest


def _files(shares: Shares) -> list[DataFile]:
    """Return the files of shares, each once."""
    return list({share.file.path: share.file for share in shares}.values())


def _condition(chosen: Iterable[Unit]) -> str:
    """Return the SQL condition that a row is of a chosen step."""
    steps: dict[str | None, set[int | None]] = defaultdict(set)
    for unit in chosen:
        steps[unit.run_id].add(unit.step)
    return any_of(
        f"({equals('run_id', run)} AND {equals('of_step', list(numbers))})" for run, numbers in steps.items()
    )
