"""End recording, and wait until the run's spans are delivered."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time

from otel_rollout.account import node_report
from otel_rollout.account.report import ExporterCount, Report
from otel_rollout.base.errors import logger, warn_once
from otel_rollout.record.launch import drain
from otel_rollout.record.launch.state import state
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.record.runs.founding import leave_run, node_directory
from otel_rollout.record.runs.membership import decide
from otel_rollout.record.runs.state import EndedRun
from otel_rollout.record.runs.state import state as runs


def shutdown(timeout: float | None) -> Report:
    """End recording in this process, and wait until the run's spans are delivered.

    A later span begins another run if the environment switches tracing on, or configure() is called again.

    Args:
        timeout: seconds to wait; by default the setting ``shutdown_timeout``.
    """
    with recording.lock:
        configured = decide()
        recording.off = True
        active = recording.take_runtime()
        if not configured.enabled:
            return Report.empty()
        deadline = time.monotonic() + _bounded(configured.shutdown_timeout if timeout is None else timeout)
        leads = runs.is_root
        if leads:
            state.ended_run = EndedRun(configured)
        if active is not None:
            active.close(deadline - time.monotonic())
        try:
            drain_other_nodes(_left(deadline))
        except Exception as error:  # noqa: BLE001 - Ray may be ending; this machine must still be drained
            logger.warning("otel-rollout: the cluster's other nodes could not be drained: %s", error)
        if leads:
            leave_run()
            runs.arguments = {}
        runs.is_over, recording.off = True, state.is_exiting
    node_dir = node_directory(configured)
    here = drain.drain(node_dir, configured, _left(deadline), shows_progress=leads)
    if active is not None or os.path.lexists(node_dir):  # else nothing was recorded
        here = complete(here, active.writer if active is not None else None)
    others = [node.final_report(_left(deadline)) for node in runs.other_nodes.values()]
    report = Report.merged([here, *others])
    if leads:
        state.ended_run = EndedRun(configured, report)
    return report


def drain_other_nodes(timeout: float | None = None) -> None:
    """Wait until the cluster's other machines have delivered their spans.

    The founder of the run calls this while Ray still runs, since forwarders may not outlive their machines.
    """
    configured = decide()
    if configured.enabled and runs.is_root and "ray" in sys.modules:
        from otel_rollout.record.launch import ray_nodes

        limit = configured.shutdown_timeout if timeout is None else timeout
        runs.other_nodes = ray_nodes.drain_others(
            runs.other_nodes, configured, node_directory(configured), _bounded(limit)
        )


def _left(deadline: float) -> float:
    """Return the seconds until a deadline, or 0."""
    return max(0.0, deadline - time.monotonic())


def _bounded(seconds: float) -> float:
    """Return ``seconds`` as a timeout that a wait accepts; infinity is too large."""
    return min(seconds, threading.TIMEOUT_MAX / 2)


# --- what this machine has recorded and delivered ----------------------------------------------------------


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


def delivered_here() -> dict[str, ExporterCount]:
    """Return this machine's counts per exporter; empty except in the founder.

    Takes no lock: readers of metrics may call it at any moment.
    """
    configured = runs.settings
    if not runs.is_root or configured is None:
        return {}
    return node_report.delivered(node_directory(configured), configured)
