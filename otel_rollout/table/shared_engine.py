"""Run queries of several threads on one version of the rollout table."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Final

from otel_rollout.table import views
from otel_rollout.table.query import Engine

if TYPE_CHECKING:
    from arro3.core import Table
    from deltalake import DeltaTable

_KEPT: Final = views.SLOW | {"trajectories"}
"""Views whose rows are kept: with them, a list of 100,000 trajectories takes milliseconds."""


_SESSION: Final = {"datafusion.optimizer.repartition_file_scans": "false"}
"""Rows of a table in memory are read by one thread, which keeps their order."""

_OF_TABLES: Final = ("CREATE ", "DROP ")
"""Beginnings of statements that have no rows: they make or drop a table."""


class SharedEngine(Engine):
    """An engine that several threads may use at once.

    A thread that reads rows from the engine holds Python's lock while the engine computes them, so no other
    thread runs. A statement that makes a table does not hold it. So each query makes a table, whose rows are
    read at once.

    Args:
        table: the opened table.
    """

    def __init__(self, table: DeltaTable) -> None:
        super().__init__(table, keep=_KEPT, session=_SESSION)
        self._making = threading.RLock()
        self._keeping = threading.Lock()
        self._numbers = itertools.count()

    def keep(self, name: str, sql: str) -> None:
        """Keep the rows of a query; see :meth:`Engine.keep`. Two threads do not compute them twice."""
        with self._keeping:
            super().keep(name, sql)

    def _rows_of(self, sql: str, limit: int | None) -> Table:
        if sql.startswith(_OF_TABLES):
            return super()._rows_of(sql, limit)
        answer = f"answer_{next(self._numbers)}"
        self._execute(f"CREATE TABLE {answer} AS (\n{sql}\n)")
        try:
            return super()._rows_of(f"SELECT * FROM {answer}", limit)  # noqa: S608
        finally:
            self._execute(f"DROP TABLE {answer}")

    def _make(self, sql: str) -> None:
        if self._made.issuperset(views.needed_by(sql)):  # the usual case, also while a thread makes a view
            return
        with self._making:
            super()._make(sql)
