"""Write the page of what changed between steps or runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_rollout.analysis.report import text as report_text
from otel_rollout.pages.links import Links
from otel_rollout.pages.rendering import render

if TYPE_CHECKING:
    from otel_rollout.analysis.report.changes import Comparison


def page_of_changes(comparison: Comparison, links: Links | None = None) -> str:
    """Return the page of a comparison: the surprising changes first, with trajectories to open."""
    return render("changes.html", links, comparison=comparison, text=report_text)
