"""Hold the findings of the checks, and show them as a table or as JSON."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from otel_rollout.exporting.batching import grouped

if TYPE_CHECKING:
    from rich.console import Console


class Verdict(enum.Enum):
    """The result of a check."""

    OK = "ok"
    """Nothing to do."""
    WARN = "warn"
    """Spans may be missing: a person should look at the finding."""
    FAIL = "fail"
    """Spans will be missing or undelivered until a person acts."""


@dataclass(frozen=True)
class DoctorFinding:
    """What one check found.

    Attributes:
        check: stable id of the check.
        verdict: the check's result.
        found: the observation, as text for a person.
        advice: the remedy; empty if there is nothing to do.
        where: the machine or node.
    """

    check: str
    verdict: Verdict
    found: str
    advice: str = ""
    where: str = ""

    def at(self, where: str) -> DoctorFinding:
        """Return the finding as one about a machine or node."""
        return replace(self, where=where)

    def as_plain(self) -> dict[str, str]:
        """Return the finding as builtins: JSON, or an answer to be unpickled without this package."""
        return asdict(self) | {"verdict": self.verdict.value}

    @classmethod
    def from_plain(cls, plain: dict[str, str]) -> DoctorFinding:
        """Restore a finding from the result of :meth:`as_plain`."""
        return cls(plain["check"], Verdict(plain["verdict"]), plain["found"], plain["advice"])


@dataclass(frozen=True)
class DoctorCheck:
    """A check with a stable id, which makes its findings."""

    id: str

    def ok(self, found: str) -> DoctorFinding:
        """Return a finding with nothing to do."""
        return DoctorFinding(self.id, Verdict.OK, found)

    def warn(self, found: str, advice: str = "") -> DoctorFinding:
        """Return a finding that a person should look at."""
        return DoctorFinding(self.id, Verdict.WARN, found, advice)

    def fail(self, found: str, advice: str = "") -> DoctorFinding:
        """Return a finding on which a person has to act."""
        return DoctorFinding(self.id, Verdict.FAIL, found, advice)


@dataclass(frozen=True)
class Diagnosis:
    """The findings of all checks.

    Attributes:
        rows: the findings, of this machine first.
    """

    rows: tuple[DoctorFinding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all rows."""
        found = {row.verdict for row in self.rows}
        return next((v for v in (Verdict.FAIL, Verdict.WARN) if v in found), Verdict.OK)

    @property
    def exit_status(self) -> int:
        """1 if a check failed, else 0; warnings do not count."""
        return 1 if self.verdict is Verdict.FAIL else 0

    def as_json(self) -> dict[str, Any]:
        """Return the diagnosis for JSON; keys may be added, but are not renamed."""
        return {"verdict": self.verdict.value, "rows": [row.as_plain() for row in self.rows]}


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print a paragraph per finding, and below them the advice, failures first; no word is broken."""
    from rich.text import Text

    from otel_rollout.look.fitted_table import STATES, print_sentence

    beside = max((len(row.check) for row in diagnosis.rows), default=0) + 2
    for where, rows in grouped(diagnosis.rows, lambda row: row.where).items():
        console.print(Text(where, "bold"), soft_wrap=True)
        for row in rows:
            style = "" if row.verdict is Verdict.OK else STATES[row.verdict.value]
            found = Text(f"  {row.verdict.value:<6}{row.check:<{beside}}{row.found}", style)
            print_sentence(console, found, " " * (beside + 8))
    for verdict in (Verdict.FAIL, Verdict.WARN):
        for advice, nodes in _advice(diagnosis, verdict).items():
            said = f"{verdict.value}: {', '.join(nodes)}: {advice}"
            print_sentence(console, Text(said, STATES[verdict.value]), "  ")


def _advice(diagnosis: Diagnosis, verdict: Verdict) -> dict[str, list[str]]:
    """Return each advice once, with all machines and nodes that need it."""
    rows = (row for row in diagnosis.rows if row.verdict is verdict and row.advice)
    by_advice = grouped(rows, lambda row: f"{row.check}: {row.advice}")
    return {advice: list(dict.fromkeys(row.where for row in each)) for advice, each in by_advice.items()}
