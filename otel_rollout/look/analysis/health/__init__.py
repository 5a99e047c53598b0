"""Check a run: healthy, unhealthy, or unobserved where the recording does not tell.

Public, for checks of your own (docs/why.md): :class:`Finding`, :data:`Status` and :class:`Run`.
"""

from otel_rollout.look.analysis.health.findings import Finding, Health, Status
from otel_rollout.look.analysis.run_choice import Run

__all__ = ["Finding", "Health", "Run", "Status"]
