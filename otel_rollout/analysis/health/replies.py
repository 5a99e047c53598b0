"""Check the replies of the model: cut, empty, repetitive, or with special tokens of the template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_rollout.analysis.health.judging import Fault, judged
from otel_rollout.analysis.health.rates import Limits

if TYPE_CHECKING:
    from otel_rollout.analysis.health.findings import Finding
    from otel_rollout.analysis.health.scope import Scope

_NO_TEXT: Final = "No text of a reply was recorded."
_TRUNCATED: Final = Fault(
    Limits(rise=0.1, always=0.5, steady=0.35),
    "trajectories of which it is known how replies ended",
    "a reply that was cut at the length limit",
    "No model call has a finish reason, or a limit of tokens.",
)
_EMPTY: Final = Fault(
    Limits(rise=0.02, always=0.2, steady=0.05),
    "trajectories with a recorded reply",
    "an empty one",
    _NO_TEXT,
)
_REPETITIVE: Final = Fault(
    Limits(rise=0.03, always=0.2, steady=0.05),
    "trajectories with text in a reply",
    "a reply that repeats one text",
    _NO_TEXT,
)
_SPECIAL: Final = Fault(
    Limits(rise=0.02, always=0.1, steady=0.01),
    "trajectories with a recorded text",
    "special tokens of the chat template in it",
    "No text of a message or reply was recorded.",
)


def truncated(scope: Scope) -> Finding:
    """Find steps in which many replies end at the length limit."""
    counts = scope.counts(_of_calls(scope, "is_cut", "has_end"))
    return judged(counts, _TRUNCATED, scope.steps)


def empty(scope: Scope) -> Finding:
    """Find steps in which the model says nothing, and calls no tool."""
    counts = scope.counts(_of_calls(scope, "is_empty", "has_reply"))
    return judged(counts, _EMPTY, scope.steps)


def repetitive(scope: Scope) -> Finding:
    """Find steps in which replies repeat one text in a loop."""
    looked = scope.looked
    return judged(looked.repetitive, _REPETITIVE, scope.steps, looked.note)


def special_tokens(scope: Scope) -> Finding:
    """Find control tokens of the chat template in replies, and in the first messages."""
    counts = scope.counts(_of_calls(scope, "has_special", "has_text"))
    return judged(counts, _SPECIAL, scope.steps)


def _of_calls(scope: Scope, bad: str, known: str) -> str:
    """Return the trajectories for which something is known, and whether any of their calls has it."""
    return (
        f"SELECT trace_id, step, bool_or(coalesce({bad}, false)) AS is_bad FROM {scope.calls} "  # noqa: S608
        f"WHERE {known} GROUP BY trace_id, step"
    )
