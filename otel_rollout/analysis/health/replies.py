"""Check the replies of the model: cut, empty, repetitive, or with special tokens of the template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_rollout.analysis.health.rates import Limits, judged

if TYPE_CHECKING:
    from otel_rollout.analysis.health.findings import Finding
    from otel_rollout.analysis.health.scope import Scope

_TRUNCATED: Final = Limits(rise=0.1, always=0.5, steady=0.35)
_EMPTY: Final = Limits(rise=0.02, always=0.2, steady=0.05)
_REPETITIVE: Final = Limits(rise=0.03, always=0.2, steady=0.05)
_SPECIAL: Final = Limits(rise=0.02, always=0.1, steady=0.01)
_NO_TEXT: Final = "No text of a reply was recorded."


def truncated(scope: Scope) -> Finding:
    """Find steps in which many replies end at the length limit."""
    counts = scope.counts(_of_calls(scope, "is_cut", "has_end"))
    missing = "No model call has a finish reason, or a limit of tokens."
    return judged(counts, _TRUNCATED, "have a reply that was cut at the length limit", missing)


def empty(scope: Scope) -> Finding:
    """Find steps in which the model says nothing, and calls no tool."""
    counts = scope.counts(_of_calls(scope, "is_empty", "has_reply"))
    return judged(counts, _EMPTY, "have an empty reply", _NO_TEXT)


def repetitive(scope: Scope) -> Finding:
    """Find steps in which replies repeat one text in a loop."""
    looked = scope.looked
    words = f"have a reply that repeats one text{looked.note}"
    return judged(looked.repetitive, _REPETITIVE, words, _NO_TEXT)


def special_tokens(scope: Scope) -> Finding:
    """Find control tokens of the chat template in replies, and in the first messages."""
    counts = scope.counts(_of_calls(scope, "has_special", "has_text"))
    words = "have special tokens of the chat template in a text"
    return judged(counts, _SPECIAL, words, "No text of a message or reply was recorded.")


def _of_calls(scope: Scope, bad: str, known: str) -> str:
    """Return the trajectories for which something is known, and whether any of their calls has it."""
    return (
        f"SELECT trace_id, step, bool_or(coalesce({bad}, false)) AS is_bad FROM {scope.calls} "  # noqa: S608
        f"WHERE {known} GROUP BY trace_id, step"
    )
