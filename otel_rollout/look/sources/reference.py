"""Parse references to trajectories: by path, trace id or trajectory id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from otel_rollout.base.printable import in_one_line
from otel_rollout.look.conversation.summary import VALIDATION, Summary, start_time
from otel_rollout.look.errors import ViewerError

FORMS: Final = (
    "STEP/SAMPLE/ROLLOUT (1/7/0, validation/1/7/0), a trace id or four or more digits that it begins with, "
    "or what Trajectory.id gives"
)
_TRACE: Final = re.compile(r"(?:tr-)?(?P<trace>[0-9a-f]{4,32})")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}")
_MAX_LISTED: Final = 8
"""Maximum trajectories listed in the error about an ambiguous reference."""


@dataclass(frozen=True)
class Reference:
    """A reference to one trajectory, or to all trajectories of a step or group.

    Attributes:
        text: the reference as a person typed it.
        trace: first digits of the trace id; empty for a reference by path.
        span: id of the root span, in a reference by trajectory id.
        path: step, sample and rollout, or only the first of these; then a slash may follow.
    """

    text: str
    trace: str = ""
    span: int | None = None
    path: str = ""

    def matches(self, summary: Summary) -> bool:
        """Return whether the reference is to this trajectory, its group or its step."""
        if self.trace:
            return summary.trace_id.startswith(self.trace)
        if not summary.path:
            return False
        return self.is_name_of(summary) or _shown_path(summary).startswith(self.path.removesuffix("/") + "/")

    def is_name_of(self, summary: Summary) -> bool:
        """Return whether the reference is the trajectory's whole path."""
        return self.path != "" and self.path in (summary.path, _shown_path(summary))


def _shown_path(summary: Summary) -> str:
    return in_one_line(summary.path)


def parse(text: str) -> Reference:
    """Parse a reference.

    Raises:
        ViewerError: the text has none of the supported forms.
    """
    lowered = text.strip().lower()
    if match := _TRACEPARENT.fullmatch(lowered):
        return Reference(text, trace=match["trace"], span=int(match["span"], 16))
    if match := _TRACE.fullmatch(lowered):
        return Reference(text, trace=match["trace"])
    if "/" in text:
        return Reference(text, path=text)
    if text.strip().isdigit():
        raise ViewerError(
            f"{text} alone does not name a trajectory. All of step {text}: "
            f"`otel-rollout show {text.strip()}/`. One of them: {FORMS}."
        )
    raise ViewerError(f"{text!r} does not name a trajectory: write {FORMS}. All of a step: 1/")


def choose(reference: Reference, found: Sequence[Summary], location: str) -> Summary:
    """Return the one trajectory that a reference names.

    Args:
        reference: what a person asked for.
        found: the trajectories that match the reference.
        location: the source that was searched, for messages.

    Raises:
        ViewerError: no trajectory or several trajectories match.
    """
    exact = [summary for summary in found if reference.is_name_of(summary)]
    candidates = exact or found
    if not candidates:
        raise ViewerError(f"There is no trajectory {reference.text} in {location}. {_advice(reference)}")
    if len(candidates) > 1:
        listed = "\n".join(
            f"  {summary.trace_id}  {_shown_path(summary)}  {summary.state}  {start_time(summary)}"
            for summary in sorted(candidates, key=attrgetter("order"))[:_MAX_LISTED]
        )
        more = f"\n  and {len(candidates) - _MAX_LISTED} more" if len(candidates) > _MAX_LISTED else ""
        raise ViewerError(
            f"{reference.text} names {len(candidates)} trajectories in {location}; "
            f"choose one by its trace id:\n{listed}{more}"
        )
    return candidates[0]


def _advice(reference: Reference) -> str:
    advice = "`otel-rollout show` with the same --from and --run lists the trajectories"
    if reference.path and not reference.path.strip("/"):  # only a trajectory without identity has such a path
        return f"{advice}. Write {FORMS}."
    if reference.path and not reference.path.startswith(VALIDATION):
        return f"{advice}; those of a validation are called {VALIDATION}/{reference.path}."
    if reference.text.isdigit():
        return f"{advice}. All of a step: {reference.text}/"
    return f"{advice}."
