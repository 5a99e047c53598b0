"""Define the result of a check: healthy, unhealthy or unobserved, with a message and evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.conversation.formatting import counted

Status: TypeAlias = Literal["healthy", "unhealthy", "unobserved"]
HEALTHY: Final = "healthy"
UNHEALTHY: Final = "unhealthy"
UNOBSERVED: Final = "unobserved"
"""What the check needs was not recorded, or is too little: nobody knows whether the run is healthy."""
ORDER: Final = (UNHEALTHY, UNOBSERVED, HEALTHY)
"""Order in which a person reads the answers."""
_KEYS: Final = ("name", "status", "steps", "evidence", "message")
"""Fields of a finding, in the order of its JSON."""
_OF_GROUPS: Final = ("groups_without_spread", "siblings_identical")
"""Checks whose faults are of groups: one trajectory alone does not show them."""
MAX_EVIDENCE: Final = 10
"""Maximum trajectories that a finding names."""


@dataclass(frozen=True)
class Finding:
    """The answer of a check.

    Attributes:
        status: ``healthy``, ``unhealthy`` or ``unobserved``.
        message: one or two sentences for a person, with numbers.
        steps: the unhealthy steps; None stands for trajectories without a step number.
        evidence: trajectories to look at: a name that ``otel-rollout show`` takes, or a trace id.
        name: the check's name; without it, the name of the entry point.
        is_little: whether an unobserved fault lacks no recording, but more trajectories.
    """

    status: Status
    message: str
    steps: tuple[int | None, ...] = ()
    evidence: tuple[str, ...] = ()
    name: str = ""
    is_little: bool = False

    @property
    def is_told(self) -> bool:
        """Whether summaries tell it: it is unhealthy, or names trajectories though nobody knows."""
        return self.status == UNHEALTHY or (self.status == UNOBSERVED and bool(self.evidence))

    @property
    def look_at(self) -> tuple[str, tuple[str, ...]]:
        """The subcommand that shows the evidence, and its names: of what siblings share, their groups."""
        if self.name not in _OF_GROUPS or not all("/" in name for name in self.evidence):
            return "show", self.evidence
        return "group", tuple(dict.fromkeys(name.rpartition("/")[0] for name in self.evidence))


@dataclass(frozen=True)
class Health:
    """The answers of all checks of a run.

    Attributes:
        run: the run.
        trajectories: number of trajectories that were checked.
        findings: a finding for each check, in the order of the checks.
        validate: whether these trajectories are of validation.
        is_of_dump: whether the run was read from a dump, so that nothing more can be recorded of it.
    """

    run: Run
    trajectories: int
    findings: tuple[Finding, ...]
    validate: bool = False
    is_of_dump: bool = False

    @property
    def checked(self) -> str:
        """What was checked, for a person: ``5,000 trajectories``."""
        return counted(self.trajectories, f"{'validation ' if self.validate else ''}trajectory")

    @property
    def is_unhealthy(self) -> bool:
        """Whether any check has found something."""
        return any(finding.status == UNHEALTHY for finding in self.findings)

    @property
    def verdict(self) -> str:
        """How many checks gave each answer, in words."""
        numbers = {status: sum(each.status == status for each in self.findings) for status in ORDER}
        return (
            ", ".join(f"{number} {status}" for status, number in numbers.items() if number) or "no check ran"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the answers as ``otel-rollout health --json`` prints them."""
        return {
            **self.run._asdict(),
            "checks": [{key: getattr(each, key) for key in _KEYS} for each in self.findings],
        }


def unobserved(message: str, is_little: bool = False) -> Finding:
    """Return the finding of a check whose data was not recorded, or is too little."""
    return Finding("unobserved", message, is_little=is_little)
