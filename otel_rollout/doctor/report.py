"""Verdicts, and how they are shown: a table for people, JSON for machines, an exit status for scripts."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


class Verdict(enum.Enum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    """Works, or may work; worth a look."""
    FAIL = "fail"
    """Spans will be missing, or not be delivered, until somebody acts."""


@dataclass(frozen=True)
class Finding:
    """What one check found, wherever it ran.

    Attributes:
        check: id of the check; stable.
        verdict: how it came out.
        found: what was found, for a person.
        advice: what to do about it; empty when there is nothing to do.
    """

    check: str
    verdict: Verdict
    found: str
    advice: str = ""

    def at(self, where: str) -> Row:
        """The finding as a row of the table."""
        return Row(where, self.check, self.verdict, self.found, self.advice)

    def as_plain(self) -> dict[str, str]:
        """As builtins, which any Python can unpickle."""
        return {
            "check": self.check,
            "verdict": self.verdict.value,
            "found": self.found,
            "advice": self.advice,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, str]) -> Finding:
        """Undo :meth:`as_plain`."""
        return cls(plain["check"], Verdict(plain["verdict"]), plain["found"], plain["advice"])


@dataclass(frozen=True)
class Row:
    """A :class:`Finding`, and the machine or node it is about."""

    where: str
    check: str
    verdict: Verdict
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All rows together."""

    rows: tuple[Row, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst there is."""
        found = {row.verdict for row in self.rows}
        return next((v for v in (Verdict.FAIL, Verdict.WARN) if v in found), Verdict.OK)

    @property
    def exit_status(self) -> int:
        """0 where nothing fails; warnings are allowed."""
        return 1 if self.verdict is Verdict.FAIL else 0

    def as_json(self) -> dict[str, Any]:
        """For machines. The keys are stable: others may be added, none is renamed."""
        return {
            "verdict": self.verdict.value,
            "rows": [
                {
                    "where": row.where,
                    "check": row.check,
                    "verdict": row.verdict.value,
                    "found": row.found,
                    "advice": row.advice,
                }
                for row in self.rows
            ],
        }


_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print the table, and below it what to do, worst first."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in ("where", "check", "verdict"):
        table.add_column(heading, no_wrap=heading != "where")
    table.add_column("found", overflow="fold")
    previous = None
    for row in diagnosis.rows:
        where = "" if row.where == previous else row.where
        shown = Text(row.verdict.value, _STYLES[row.verdict])
        table.add_row(Text(where), row.check, shown, Text(row.found))
        previous = row.where
    console.print(table)
    for verdict in (Verdict.FAIL, Verdict.WARN):
        for advice, places in _advice(diagnosis, verdict).items():
            line = Text(f"{verdict.value}: ", _STYLES[verdict])
            line.append(f"{', '.join(places)}: {advice}", "default")
            console.print(line, soft_wrap=True)


def _advice(diagnosis: Diagnosis, verdict: Verdict) -> dict[str, list[str]]:
    """What to do and where, each advice once however many nodes need it."""
    places: dict[str, list[str]] = {}
    for row in diagnosis.rows:
        if row.verdict is verdict and row.advice:
            at = places.setdefault(f"{row.check}: {row.advice}", [])
            if row.where not in at:
                at.append(row.where)
    return places
