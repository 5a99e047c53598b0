"""Let one process at a time replace files of a table, and one process at a time import spans.

The lease is an application transaction in the table's own log. Its version is the time until which the lease
is valid. So a lease works in every store that has Delta tables, and needs no lock beside the table.

Two rules keep the rows exact, even if clocks are wrong or a holder dies:

- A commit of the holder is written as the direct successor of a version that the holder has read. The store
  refuses it if another commit has taken that place.
- In the version that was read, the lease is the holder's, and each file to replace is still there.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_rollout.base.waits import waits
from otel_rollout.table.errors import TableError
from otel_rollout.table.store import Store

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction


class Purpose(NamedTuple):
    """What a lease is for. Leases of two purposes do not exclude each other.

    Attributes:
        application: id of the application transaction that is the lease.
        holder: key of the holder's name in the metadata of each of its commits.
        doing: what the holder does to the table, for a sentence.
        advice: what a process reads that asks for a lease while another process has it.
    """

    application: str
    holder: str
    doing: str
    advice: str


REPLACE: Final = Purpose(
    "otel-rollout-lease", "rollout.lease.holder", "compacted or pruned", "try again later"
)
IMPORT: Final = Purpose(
    "otel-rollout-import", "rollout.import.holder", "imported into", "this import waits for it"
)
_SEARCHED: Final = 200
"""Commits in which the holder's name is looked for."""
_MICROSECONDS: Final = 1_000_000


class LeaseHeldError(TableError):
    """Another process has the lease."""


class LeaseLostError(TableError):
    """Another process has taken the lease, or has removed files that were to be replaced."""


class Lease:
    """The exclusive right to change a table for one purpose. :meth:`acquire` returns one.

    Args:
        store: the table.
        until: the lease's version in the table's log; None if there never was one.
        purpose: what the lease is for.
    """

    def __init__(self, store: Store, until: int | None, purpose: Purpose = REPLACE) -> None:
        self._store = store
        self._until = until
        self._purpose = purpose
        self._holder = f"process {os.getpid()} on {socket.gethostname()}"

    @classmethod
    def acquire(cls, store: Store, purpose: Purpose = REPLACE) -> Lease:
        """Take the lease if nobody has it, or if its holder's time is over.

        Raises:
            LeaseHeldError: another process has the lease.
            TableError: the table cannot be read or written.
        """
        while True:
            table = store.open()
            with store.describing():
                until = table.transaction_version(purpose.application)
            if until is not None and until > _now():
                raise LeaseHeldError(_held(store, table, until, purpose))
            lease = cls(store, until, purpose)
            try:
                lease.commit()
            except LeaseLostError:  # another process was faster
                continue
            return lease

    @classmethod
    @contextmanager
    def kept(cls, store: Store, purpose: Purpose, on_wait: Callable[[str], object]) -> Iterator[None]:
        """Wait for the lease, renew it in a thread, and release it in the end.

        Args:
            store: the table.
            purpose: what the lease is for.
            on_wait: gets one sentence if another process has the lease.

        Raises:
            TableError: the table cannot be read or written.
        """
        lease = cls._waited_for(store, purpose, on_wait)
        is_over = threading.Event()
        renewal = threading.Thread(target=lease._renew_until, args=(is_over,), daemon=True)
        renewal.start()
        try:
            yield
        finally:
            is_over.set()
            renewal.join()
            lease.close()

    @classmethod
    def _waited_for(cls, store: Store, purpose: Purpose, on_wait: Callable[[str], object]) -> Lease:
        is_waiting = False
        while True:
            try:
                return cls.acquire(store, purpose)
            except LeaseHeldError as error:
                if not is_waiting:
                    on_wait(str(error))
                is_waiting = True
            time.sleep(waits().lease_look)

    def _renew_until(self, is_over: threading.Event) -> None:
        while not is_over.wait(waits().lease / 4):
            try:
                self.renew()
            except LeaseLostError:  # the process was stopped for minutes; views count a span once
                return
            except TableError:  # the store may answer again before the lease ends
                continue

    def renew(self) -> None:
        """Renew the lease if half of its time is over.

        Raises:
            LeaseLostError: another process has the lease.
            TableError: the table cannot be written.
        """
        if self._until is not None and self._until - _now() < waits().lease * _MICROSECONDS / 2:
            self.commit()

    def close(self) -> None:
        """Release the lease, so that others can take it at once.

        If that fails, others can take the lease when its time is over.
        """
        with suppress(TableError):
            self._commit(_now(), (), ())

    def commit(self, removed: Sequence[RemoveAction] = (), added: Sequence[AddAction] = ()) -> None:
        """Replace files of the table, and renew the lease, in one commit.

        Raises:
            LeaseLostError: another process has the lease, or a file to remove is gone. Nothing is replaced.
            TableError: the table cannot be written.
        """
        self._commit(_now() + int(waits().lease * _MICROSECONDS), removed, added)

    def _commit(self, until: int, removed: Sequence[RemoveAction], added: Sequence[AddAction]) -> None:
        from deltalake.exceptions import CommitFailedError

        deadline = time.monotonic() + waits().lease_commit
        table = self._store.open()
        while True:
            with self._store.describing():
                if self._is_in(table, until, removed):
                    break
                try:
                    self._write(table, until, [*removed, *added])
                    break
                except CommitFailedError:  # another commit took the place; or the answer to this one is lost
                    if time.monotonic() > deadline:
                        raise
                time.sleep(random.SystemRandom().uniform(0, waits().poll))
                table.update_incremental()
        self._until = until

    def _is_in(self, table: DeltaTable, until: int, removed: Sequence[RemoveAction]) -> bool:
        """Return whether the version that was read has our commit; else check that our commit may follow."""
        found = table.transaction_version(self._purpose.application)
        if found == until and _holder(table, self._purpose) == self._holder:
            return True  # the answer to the commit was lost
        if found != self._until:
            raise LeaseLostError(
                f"Another process has taken over the table at {self._store.location.uri}: it does the rest."
            )
        if removed:
            present = set(table.get_add_actions().column("path").to_pylist())
            if not present.issuperset(action.path for action in removed):
                raise LeaseLostError(
                    f"Another program has replaced files of the table at {self._store.location.uri}: run the "
                    "command again."
                )
        return False

    def _write(self, table: DeltaTable, until: int, actions: list[AddAction | RemoveAction]) -> None:
        """Write the commit as the successor of the version that was read, or not at all."""
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction

        table.create_write_transaction(
            actions,
            mode="append",
            schema=table.schema(),
            commit_properties=CommitProperties(
                custom_metadata={self._purpose.holder: self._holder},
                app_transactions=[Transaction(app_id=self._purpose.application, version=until)],
                max_commit_retries=0,
            ),
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )


def _held(store: Store, table: DeltaTable, until: int, purpose: Purpose) -> str:
    """Return the sentence that names the holder."""
    with store.describing():
        holder = _holder(table, purpose) or "another process"
    end = datetime.fromtimestamp(until / _MICROSECONDS, UTC)
    return (
        f"The table at {store.location.uri} is being {purpose.doing} by {holder}, which has until "
        f"{end:%H:%M:%S} UTC for its next step: {purpose.advice}."
    )


def _holder(table: DeltaTable, purpose: Purpose) -> str | None:
    """Return the name of the process whose commit has the lease; None if that commit is too old."""
    return next((name for entry in table.history(_SEARCHED) if (name := entry.get(purpose.holder))), None)


def _now() -> int:
    """Return the time in microseconds; two processes may get the same."""
    return time.time_ns() // 1000
