"""Which trajectory somebody means: by its place in the training, its trace id or its trajectory id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from otel_rollout.viewer.printable import in_one_line
from otel_rollout.viewer.summary import VALIDATION, Summary, started

FORMS: Final = (
    "STEP/SAMPLE/ROLLOUT (1/7/0, validation/1/7/0), a trace id or four or more digits that it begins with, "
    "or what Trajectory.id gives"
)
_TRACE: Final = re.compile(r"(?:tr-)?(?P<trace>[0-9a-f]{4,32})")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}")
_LISTED: Final = 8


class UnresolvedError(Exception):
    """The trajectory that is meant cannot be told, or found, or read; the message is for a person."""


@dataclass(frozen=True)
class Reference:
    """What somebody wrote for a trajectory, or for several.

    Attributes:
        text: as it was written.
        trace: digits with which the trace id begins; empty where it is not said by that.
        span: the root span, where a trajectory id says it.
        path: step, sample and rollout, or the first of these; what ends with a slash is not all of it.
    """

    text: str
    trace: str = ""
    span: int | None = None
    path: str = ""

    def matches(self, summary: Summary) -> bool:
        """Whether a trajectory is meant, or one of those that are."""
        if self.trace:
            return summary.trace_id.startswith(self.trace)
        if not summary.path:
            return False
        return self.is_name_of(summary) or _shown(summary).startswith(self.path.rstrip("/") + "/")

    def is_name_of(self, summary: Summary) -> bool:
        """Whether this is the whole name of a trajectory, as it is or as it is shown."""
        return self.path != "" and self.path in (summary.path.strip(), _shown(summary).strip())


def _shown(summary: Summary) -> str:
    return in_one_line(summary.path)


def parse(text: str) -> Reference:
    """Read what somebody wrote.

    Raises:
        UnresolvedError: it is none of the forms there are.
    """
    lowered = text.strip().lower()
    if match := _TRACEPARENT.fullmatch(lowered):
        return Reference(text, trace=match["trace"], span=int(match["span"], 16))
    if match := _TRACE.fullmatch(lowered):
        return Reference(text, trace=match["trace"])
    if "/" in text:
        return Reference(text, path=text.strip())
    if text.strip().isdigit():
        raise UnresolvedError(
            f"{text} alone names no trajectory. All of step {text}: `otel-rollout show {text.strip()}/`. "
            f"One of them: {FORMS}."
        )
    raise UnresolvedError(f"{text!r} names no trajectory: write {FORMS}. All of a step: 1/")


def choose(reference: Reference, found: Sequence[Summary], place: str) -> Summary:
    """The one trajectory that is meant, of those that match.

    Raises:
        UnresolvedError: there is none, or there are several.
    """
    exact = [one for one in found if reference.is_name_of(one)]
    several = exact or found
    if not several:
        raise UnresolvedError(f"No trajectory {reference.text} in {place}. {_advice(reference)}")
    if len(several) > 1:
        listed = sorted(several, key=attrgetter("order"))[:_LISTED]
        shown = "\n".join(f"  {one.trace_id}  {_shown(one)}  {one.state}  {started(one)}" for one in listed)
        more = f"\n  and {len(several) - _LISTED} more" if len(several) > _LISTED else ""
        raise UnresolvedError(
            f"{reference.text} are {len(several)} trajectories in {place}; name one by its trace id:\n"
            f"{shown}{more}"
        )
    return several[0]


def _advice(reference: Reference) -> str:
    listed = "`otel-rollout show` lists what is there"
    if reference.path and not reference.path.strip(
        "/"
    ):  # a name only where step, sample and rollout are empty
        return f"{listed}. Write {FORMS}."
    if reference.path and not reference.path.startswith(VALIDATION):
        return f"{listed}; a validation's are called {VALIDATION}/{reference.path}."
    if reference.text.isdigit():
        return f"{listed}. All of a step: {reference.text}/"
    return f"{listed}."
