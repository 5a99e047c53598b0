"""Show all runs of a table."""

from __future__ import annotations

from otel_rollout.analysis.report import text as report_text
from otel_rollout.pages.links import Links
from otel_rollout.pages.rendering import render
from otel_rollout.web.snapshot import RunRow, Snapshot


def page_of_runs(snapshot: Snapshot, location: str, links: Links, now: float) -> str:
    """Return the page of all runs.

    Args:
        snapshot: the version of the table.
        location: where the spans are.
        links: addresses of other pages.
        now: time in seconds of Unix time.
    """
    rows = [
        {
            "run": row.run,
            "figures": row.figures,
            "is_live": snapshot.is_live(row, now),
            "began": f"{row.figures['start_time']:%Y-%m-%d %H:%M:%S}",
            "steps": _steps(row),
            "reward": report_text.number(row.figures["reward_mean"]),
        }
        for row in snapshot.runs
    ]
    return render("runs.html", links, rows=rows, location=location)


def _steps(row: RunRow) -> str:
    first, last = row.figures["first_step"], row.figures["last_step"]
    return "" if first is None else str(first) if first == last else f"{first}–{last}"
