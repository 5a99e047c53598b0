"""Open dumps as the commands do, and ask the views."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from otel_rollout.cli.sources import store_at
from otel_rollout.look.dumps import cache
from otel_rollout.look.dumps.opening import Dumps
from otel_rollout.look.dumps.readers.messages import Mapped
from otel_rollout.table.query import Engine, dicts_of


class OpenedDump:
    """A dump as a table.

    Attributes:
        remarks: what a person is told.
    """

    def __init__(
        self, *paths: Path, kept: Path, format_: str | None = None, mapped: str | None = None
    ) -> None:
        dumps = Dumps([str(path) for path in paths], format_, Mapped.parse(mapped) if mapped else None)
        table, self.remarks = cache.table_of(dumps, kept)
        self.remarks += dumps.notes
        self.table = table
        self._engine = Engine(store_at(str(table)).open())

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        return dicts_of(self._engine.run(sql))

    def trajectories(self) -> list[dict[str, Any]]:
        """Return the trajectories in the order of their names."""
        return self.rows("SELECT * FROM trajectories ORDER BY step, validate, sample_index, rollout_n, path")

    def scores(self) -> dict[str, dict[str, Any]]:
        """Return path → the scores that have a number."""
        found: dict[str, dict[str, Any]] = {}
        for row in self.rows(
            "SELECT path, name, value FROM scores "
            "JOIN (SELECT trace_id AS of, path FROM trajectories) ON trace_id = of"
        ):
            found.setdefault(row["path"], {})[row["name"]] = row["value"]
        return found


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Write records as JSON lines, with NaN as Python writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def verl_line(number: int = 0, **others: Any) -> dict[str, Any]:
    """Return a line of verl's default trainer."""
    line = {
        "input": f"user\n{number}+1?\nassistant\n",
        "output": str(number + 1),
        "gts": str(number + 1),
        "score": float(number % 2),
        "step": 1,
        "uid": f"g{number // 2}_{number % 2}_0",
    }
    return line | others
