"""Print delivery reports: as a table, as a table that is refreshed, or as JSON."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from otel_rollout.account.report import ExporterCount, Report, StepCount
from otel_rollout.spool.receiver_files import ReceiverCounts, is_receiving, read_address, read_counts

_WATCH_INTERVAL = 2.0
"""Seconds between refreshes of a watched report."""
_SPANS = "started = recorded + dropped + open + unfinished"
_DELIVERY = "recorded = delivered + rejected + sampled out + pending"
_DELIVERY_HEADINGS = ("delivered", "rejected", "sampled out", "pending")


def show(reports: Sequence[Report], console: Console, steps: bool = False) -> None:
    """Print reports, one below the other; with ``steps``, also their counts per step."""
    for report in reports:
        console.print(_shown(report, steps), soft_wrap=True)


def watch(reports: Callable[[], Sequence[Report]], steps: bool = False) -> None:
    """Print reports and refresh them every two seconds, until Ctrl-C."""
    try:
        with Live(auto_refresh=False) as live:
            while True:
                live.update(Group(*(_shown(report, steps) for report in reports())), refresh=True)
                time.sleep(_WATCH_INTERVAL)
    except KeyboardInterrupt:
        pass


def as_json(report: Report) -> dict[str, object]:
    """Return a report as the object that ``status --json`` prints."""
    return {
        "directory": report.directory,
        "problem": report.problem,
        "started": report.started,
        "recorded": report.recorded,
        "scopes": dict(report.scopes),
        "open": report.open,
        "unfinished": report.unfinished,
        "dropped": dict(report.dropped),
        "sampled_out": dict(report.sampled_out),
        "groups_kept": dict(report.groups_kept),
        "groups_sampled_out": dict(report.groups_sampled_out),
        "exporters": {name: dataclasses.asdict(count) for name, count in report.exporters.items()},
        "lost": report.lost,
        "receiver": _receiver_as_json(report),
        "trajectories": report.trajectories,
        "operations_outside": report.operations_outside,
        "steps": [
            {**key._asdict(), "started": count.started, **dataclasses.asdict(count), "pending": count.pending}
            for key, count in report.by_step.items()
        ],
    }


def _shown(report: Report, steps: bool) -> RenderableType:
    dropped = sum(report.dropped.values())
    lines = [
        report.problem,
        f"started {report.started} = recorded {report.recorded} + dropped {dropped} + open {report.open}"
        f" + unfinished {report.unfinished}",
        *(_recorded_by(report) if report.other_scopes else ()),
        *_reasons("dropped", report.dropped),
        *_reasons("trajectories sampled out", report.sampled_out),
        *_reasons("groups delivered", report.groups_kept),
        *_reasons("groups sampled out", report.groups_sampled_out),
        *_received(report),
        report.broken_chain,
    ]
    exporters = report.exporters.items()
    below = [
        *(f"{name} delivers to {count.destination}" for name, count in exporters if count.destination),
        *(f"{name}: {count.problem}" for name, count in exporters if count.problem),
        *(
            line
            for name, count in exporters
            for line in _reasons(f"{name}: scores of no trajectory", count.unresolved_scores)
        ),
    ]
    return Group(
        Text(report.directory, style="bold"),
        *map(Text, filter(None, lines)),
        _exporter_table(report),
        *map(Text, below),
        *([_step_table(report)] if steps else []),
    )


def _receivers(report: Report) -> Iterator[tuple[Path, ReceiverCounts]]:
    """Yield the node directories that have had a receiver, and its counts."""
    for directory in filter(None, report.directory.split(", ")):
        counts = read_counts(Path(directory))
        if counts is not None:
            yield Path(directory), counts


def _receiver_as_json(report: Report) -> list[dict[str, object]]:
    return [
        {"is_running": is_receiving(node_dir), **dataclasses.asdict(counts)}
        for node_dir, counts in _receivers(report)
    ]


def _received(report: Report) -> Iterator[str]:
    for node_dir, counts in _receivers(report):
        address = read_address(node_dir) if is_receiving(node_dir) else None
        where = f"at {address.endpoint}" if address is not None else "ended"
        yield f"receiver {where}: {counts.problem or f'{counts.recorded} spans received'}"
        if counts.sampled_out:
            yield f"received spans sampled out: {counts.sampled_out}"
        if counts.changed_ids:
            yield f"received spans with ids of other spans, which got new ones: {counts.changed_ids}"
        yield from _reasons("received spans refused", counts.refused_spans)
        yield from _reasons("requests refused", counts.refused_requests)


def _reasons(what: str, numbers: Mapping[str, int]) -> list[str]:
    return [f"{what} ({reason}): {number}" for reason, number in numbers.items()]


def _recorded_by(report: Report) -> list[str]:
    return [f"recorded by {scope}: {number}" for scope, number in report.scopes.items()]


def _step_table(report: Report) -> Table:
    reasons = list(report.dropped)
    table = Table(
        caption=f"{_SPANS}\n{_DELIVERY}, at the exporter that has delivered least",
        caption_justify="left",
        padding=0,  # eight counts in 80 columns
    )
    table.add_column("step", no_wrap=True)
    dropped = [f"dropped: {reason}" for reason in reasons]
    for heading in ("started", "recorded", *dropped, "open", "unfinished", *_DELIVERY_HEADINGS):
        table.add_column(heading, justify="right", overflow="fold")
    for key, count in report.by_step.items():
        name = f"{key.step or 'outside any'}{' (validation)' if key.validate else ''}"
        recorded = (count.started, count.recorded, *(count.dropped.get(reason, 0) for reason in reasons))
        table.add_row(name, *map(str, (*recorded, count.open, count.unfinished, *_delivery_counts(count))))
    return table


def _exporter_table(report: Report) -> Table:
    table = Table(
        caption=f"{_DELIVERY} + lost; retried: batches sent again", caption_justify="left", padding=0
    )
    table.add_column("exporter", no_wrap=True)
    for heading in ("recorded", *_DELIVERY_HEADINGS, "lost", "retried"):
        table.add_column(heading, justify="right", min_width=max(map(len, heading.split())))
    for name, count in report.exporters.items():
        counts = (*_delivery_counts(count), count.lost_of(report.recorded), count.retried)
        table.add_row(name, str(report.recorded), *map(str, counts))
    return table


def _delivery_counts(count: ExporterCount | StepCount) -> tuple[int, int, int, int]:
    return count.delivered, count.rejected, count.sampled_out, count.pending
