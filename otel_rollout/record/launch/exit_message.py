"""Compose the line that a program logs at exit: delivered and undelivered spans."""

from __future__ import annotations

import contextlib
import logging
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from otel_rollout.account.progress import write
from otel_rollout.account.report import ExporterCount, Report
from otel_rollout.record.launch import launcher
from otel_rollout.spool import layout

_logger = logging.getLogger("otel_rollout")


def say(report: Report, node_dir: Path) -> None:
    """Log the line, or print it to standard error where logging is not configured.

    ``logging.getLogger("otel_rollout").setLevel(logging.WARNING)`` silences a line without problems.
    """
    message = text(report, node_dir)
    if not message:
        return
    level = logging.WARNING if report.lost or report.undelivered else logging.INFO
    if _logger.level > level:
        return
    if _logger.hasHandlers() and _logger.isEnabledFor(level):
        _logger.log(level, "otel-rollout: %s", message)
    else:
        write(f"otel-rollout: {message}\n")


def text(report: Report, node_dir: Path) -> str:
    """Return the line for a run's report; empty where there is nothing to say.

    Args:
        report: the run's delivery report.
        node_dir: this machine's directory of the run, for the commands that the line suggests.
    """
    if not report.recorded and not report.dropped:
        return _nothing_recorded(report)
    sentences = [_delivery(name, count, report, node_dir) for name, count in report.exporters.items()]
    if report.dropped:
        reasons = ", ".join(f"{number} ({reason})" for reason, number in report.dropped.items())
        sentences.append(f"Dropped: {_spans(sum(report.dropped.values()))}, by reason: {reasons}.")
    if report.broken_chain:
        sentences.append(f"{report.broken_chain}.")
    if report.lost:
        sentences.append(f"Lost: {_spans(report.lost)}; please report this.")
    return " ".join(sentences)


def _nothing_recorded(report: Report) -> str:
    if not report.sampled_out:
        return ""
    reasons = ", ".join(f"{number} ({reason})" for reason, number in report.sampled_out.items())
    return f"nothing was recorded. Trajectories sampled out, by reason: {reasons}."


def _delivery(name: str, count: ExporterCount, report: Report, node_dir: Path) -> str:
    """Say what one exporter has delivered, and what happens to the rest."""
    prints = name == "console" and count.destination
    target = f"{name}, printed in {count.destination}" if prints else count.destination or name
    if count.pending:
        parts = [f"{count.delivered} of {_spans(report.recorded)} delivered to {target}."]
    else:
        parts = [f"{_spans(count.delivered)} delivered to {target}."]
    if count.sampled_out:
        parts.append(f"{_spans(count.sampled_out)} sampled out.")
    if count.rejected:
        parts.append(f"{_spans(count.rejected)} rejected there and kept in {node_dir}/rejected.{name}.jsonl.")
    if count.pending:
        parts.append(_pending(count, report.recorded, node_dir))
    elif count.problem:
        parts.append(count.problem)
    return " ".join(parts)


def _pending(count: ExporterCount, recorded: int, node_dir: Path) -> str:
    """Say why spans are pending, and what delivers them."""
    number = count.pending
    rest = f"The other {number}" if number < recorded else f"All {number}" if number > 1 else "It"
    are = f"{rest} {'are' if number > 1 else 'is'}"
    option = f"--spool {shlex.quote(str(node_dir))}"
    forward = f"otel-rollout forward {option}"
    watch = f"Watch it with: otel-rollout status --watch {option}"
    problem = (count.problem or "").rstrip(".")
    if count.is_refused:
        return f"{are} kept on disk until this is corrected: {problem}. Then deliver with: {forward}"
    if not launcher.forwarder_runs(node_dir):
        log = node_dir / layout.FORWARDER_LOG
        why = f" No process delivers; {log} may say why." if log.exists() else ""
        return f"{are} kept on disk.{why} Deliver with: {forward}"
    if problem:
        return f"{are} kept on disk, and delivery is tried again in the background: {problem}. {watch}"
    return f"{are} being delivered in the background. {watch}"


def _spans(number: int) -> str:
    return f"{number} span{'' if number == 1 else 's'}"


@contextlib.contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Ignore Ctrl-C while the line is written: people may press it twice."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:  # None: a handler that was not set from Python cannot be restored
            signal.signal(signal.SIGINT, before)
