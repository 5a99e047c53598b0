"""Report what this machine has recorded and delivered."""

from __future__ import annotations

import dataclasses

from otel_rollout.account import node_report
from otel_rollout.account.report import DeliveryCount, ExporterCount, Report
from otel_rollout.base.errors import warn_once
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.record.runs.directory import node_directory
from otel_rollout.record.runs.membership import decide
from otel_rollout.record.runs.state import state as runs


def status() -> Report:
    """Return the delivery report of this machine's processes of the run."""
    configured = decide()
    if not configured.enabled:
        return Report.empty()
    return complete(node_report.report(node_directory(configured), configured), present_writer())


def complete(report: Report, writer: SegmentWriter | None) -> Report:
    """Add this process's counts to the report of an unreadable spool, with a warning."""
    if report.problem is None:
        return report
    warn_once(f"the counts of recorded and delivered spans are not known: {report.problem}")
    if writer is None:
        return report
    counts = writer.counts()
    pending = ExporterCount(pending=counts.recorded)
    return dataclasses.replace(
        report,
        started=counts.started,
        recorded=counts.recorded,
        dropped={reason: n for reason, n in counts.drops.items() if n},
        sampled_out={reason: n for reason, n in counts.skips.items() if n},
        exporters=dict.fromkeys(report.exporters, pending),
        other_scopes=counts.other_scopes,
        trajectories=counts.tallies["trajectories"],
        operations_outside=counts.tallies["operations_outside"],
    )


def present_writer() -> SegmentWriter | None:
    """Return this process's writer; None before the first span, or without tracing."""
    active = recording.runtime  # another thread may set it to None
    return active.writer if active is not None else None


def delivered_here() -> dict[str, DeliveryCount]:
    """Return this machine's counts per exporter; empty except in the founder.

    Takes no lock: readers of metrics may call it at any moment.
    """
    configured = runs.settings
    if not runs.is_root or configured is None:
        return {}
    return node_report.delivered(node_directory(configured), configured)
