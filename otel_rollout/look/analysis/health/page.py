"""Render the answers of the checks as an HTML page."""

from __future__ import annotations

from typing import Final

from otel_rollout.look.analysis.health.findings import ORDER, Health
from otel_rollout.look.pages.rendering import Links, render

_MAX_STEPS: Final = 50
"""Steps of a finding that the page names."""


def page_of_health(health: Health, links: Links | None = None) -> str:
    """Return the page of a run's health: what was found first, then what nobody knows.

    Args:
        health: the answers.
        links: addresses of other pages; by default the page stands alone.
    """
    findings = sorted(health.findings, key=lambda finding: ORDER.index(finding.status))
    return render(
        "health.html",
        links,
        health=health,
        findings=findings,
        max_steps=_MAX_STEPS,
    )
