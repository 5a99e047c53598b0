"""Check that each turn's context begins with the whole turn before: nobody edits what the model has seen."""

from __future__ import annotations

from typing import Final

from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.rates import Fault, RateLimits, judged
from otel_rollout.look.analysis.health.scope import Scope

_LIMITS: Final = RateLimits(rise=0.02, always=0.05, steady=0.01)
_EDITED: Final = Fault(
    _LIMITS,
    "trajectories whose turns name the turn that they continue",
    "a turn whose context is not the beginning of the next one's",
    "No model call names the turn that it continues: there is one turn each, or OTEL_ROLLOUT_TURNS=whole.",
    "In all {of} trajectories whose turns name the turn that they continue, each begins with that turn.",
)
_RETOKENIZED: Final = Fault(
    _LIMITS,
    "trajectories with token ids in two turns or more",
    "an answer whose tokens are others in the next prompt, for one text",
    _EDITED.missing,
    "In all {of} trajectories with token ids in two turns or more, the next prompt has the sampled tokens.",
)
_WITHOUT_IDS: Final = "No model call that continues a turn has the token ids of its prompt and its answer."
_LISTED: Final = " `otel-rollout list --broken-prefix` names each trajectory, with the turn and the token."


def edited(scope: Scope) -> Finding:
    """Find turns of which the next turn's context has another version."""
    return judged(scope.counts_of_sign("has_edited"), _EDITED, scope.steps)


def retokenized(scope: Scope) -> Finding:
    """Find answers that a later prompt encodes with other tokens than those that were sampled."""
    counts = scope.counts_of_sign("has_retokenized")
    if not counts:
        return unobserved(_WITHOUT_IDS)
    return judged(counts, _RETOKENIZED, scope.steps, _LISTED if any(count.bad for count in counts) else "")
