"""Render the answers of the checks as an HTML page."""

from __future__ import annotations

from typing import Final

from otel_rollout.look.analysis.health.findings import HEALTHY, UNHEALTHY, UNOBSERVED, Health
from otel_rollout.look.pages.rendering import Links, render

_ORDER: Final = (UNHEALTHY, UNOBSERVED, HEALTHY)
_MAX_STEPS: Final = 50
"""Steps of a finding that the page names."""


def page_of_health(health: Health, links: Links | None = None) -> str:
    """Return the page of a run's health: what was found first, then what nobody knows.

    Args:
        health: the answers.
        links: addresses of other pages; by default the page stands alone.
    """
    findings = sorted(health.findings, key=lambda finding: _ORDER.index(finding.status))
    return render(
        "health.html",
        links,
        health=health,
        findings=findings,
        verdict=verdict_of(health),
        max_steps=_MAX_STEPS,
    )


def verdict_of(health: Health) -> str:
    """Return how many checks gave each answer, in words."""
    numbers = {status: sum(each.status == status for each in health.findings) for status in _ORDER}
    return ", ".join(f"{number} {status}" for status, number in numbers.items() if number) or "no check ran"
