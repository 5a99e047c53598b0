"""Make the pages of a run, as ``--html`` writes them but with links, and the list of all runs."""

from __future__ import annotations

from typing import Final

from otel_rollout.look.analysis.group.page import page_of_group
from otel_rollout.look.analysis.group.siblings import siblings_in
from otel_rollout.look.analysis.group.tree import tree_of
from otel_rollout.look.analysis.health import checks
from otel_rollout.look.analysis.report import text as report_text
from otel_rollout.look.analysis.report.page import page_of_health, page_of_report, page_of_step
from otel_rollout.look.analysis.report.report import report_of
from otel_rollout.look.analysis.report.step import step_of
from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.analysis.timeline.page import page_of_timeline
from otel_rollout.look.analysis.timeline.phase_drawing import time_bar_of
from otel_rollout.look.analysis.timeline.timeline import timeline as timeline_of
from otel_rollout.look.conversation import page
from otel_rollout.look.conversation.comparison import compare
from otel_rollout.look.conversation.conversation import conversation_of
from otel_rollout.look.conversation.trajectories import is_passed_over, trajectory_in
from otel_rollout.look.pages.rendering import Links, render
from otel_rollout.look.sources.table_source import TableSource
from otel_rollout.look.web.answers import Make
from otel_rollout.look.web.request import Asked
from otel_rollout.look.web.snapshot import Snapshot
from otel_rollout.look.web.trajectory_list import Filters, page_of_trajectories

_RUNNING: Final = "running"
_PATIENCE: Final = 2.0
"""Seconds for which a request waits for a result that takes long."""
_GLANCE: Final = 0.5
"""Seconds for which a run's page waits for the run's health; without it, the page is reloaded later."""


def run(asked: Asked) -> str:
    """Return the page of a run: its curves over steps."""
    found = asked.answered(
        asked.reports, "report", lambda snapshot: report_of(snapshot.engine, asked.run), _PATIENCE
    )
    checked = asked.answer(asked.checks, _checks_of(asked.run), _GLANCE)
    asked.refreshed(is_changing=asked.is_live or checked is None)
    return page_of_report(found, asked.links, checked.value if checked else None)


def step(asked: Asked) -> str:
    """Return the page of a step with its groups."""
    asked.refreshed()
    return page_of_step(step_of(asked.snapshot.engine, asked.run, asked.step, asked.validate), asked.links)


def timeline(asked: Asked) -> str:
    """Return the page of a step's time."""
    asked.refreshed()
    found = timeline_of(asked.snapshot.engine, asked.run, asked.step, asked.validate)
    return page_of_timeline(found, asked.links)


def health(asked: Asked) -> str:
    """Return the page of a run's checks."""
    found = asked.answered(asked.checks, "health", _checks_of(asked.run), _PATIENCE)
    asked.refreshed()
    return page_of_health(found, asked.links)


def _checks_of(run: Run) -> Make:
    return lambda snapshot: checks.health_of(snapshot.engine, run, checks.chosen(table=snapshot.address))


def group(asked: Asked) -> str:
    """Return the page of a group, its siblings merged into a tree."""
    asked.refreshed()
    table = TableSource(asked.snapshot.engine, "", asked.run.condition, asked.run.name)
    return page_of_group(tree_of(siblings_in(table, asked.name("name"))), asked.links)


def trajectories(asked: Asked) -> str:
    """Return the list of trajectories that a form filters.

    By default it does not reload, so that a person can type.
    """
    asked.refreshed(by_default=False)
    return page_of_trajectories(asked.snapshot, asked.run, Filters(asked.given), asked.links)


def trajectory(asked: Asked) -> str:
    """Return the page of a trajectory, turn by turn."""
    summary, part = asked.trajectory("name")
    asked.refreshed(is_changing=asked.is_live and summary.state == _RUNNING)
    recorded = trajectory_in(asked.snapshot.engine, summary.trace_id, part)
    found = conversation_of(recorded, is_passed_over=is_passed_over(asked.snapshot.engine, recorded))
    siblings = asked.siblings_of(summary)
    spans = asked.snapshot.engine.narrowed(recorded.rows, in_memory=True)
    return page.of_conversation(found, asked.links, siblings, time_bar_of(spans))


def comparison(asked: Asked) -> str:
    """Return the page of two trajectories side by side."""
    chosen = map(asked.trajectory, ("left", "right"))
    read = (trajectory_in(asked.snapshot.engine, summary.trace_id, part) for summary, part in chosen)
    return page.of_comparison(compare(*map(conversation_of, read)), asked.links)


def page_of_runs(snapshot: Snapshot, location: str, links: Links, now: float) -> str:
    """Return the page of all runs.

    Args:
        snapshot: the version of the table.
        location: where the spans are.
        links: addresses of other pages.
        now: time in seconds of Unix time.
    """
    projects = list(dict.fromkeys(row.run.project for row in snapshot.runs))
    return render(
        "runs.html", links, rows=snapshot.runs, now=now, location=location, projects=projects,
        text=report_text,
    )  # fmt: skip
