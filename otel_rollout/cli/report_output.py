"""Print delivery reports: as a table, as a table that is refreshed, or as JSON."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from otel_rollout.account.report import ExporterCount, Report, StepCount
from otel_rollout.look.fitted_table import columns_of, fitted, room
from otel_rollout.spool.receiver_files import ReceiverCounts, is_receiving, read_address, read_counts

_WATCH_INTERVAL = 2.0
"""Seconds between refreshes of a watched report."""
_SPANS = "started = recorded + dropped + open + unfinished"
_DELIVERY = "recorded = delivered + rejected + sampled out + pending"
_DELIVERY_HEADINGS = ("delivered", "rejected", "sampled out", "pending")


def show(reports: Sequence[Report], console: Console, steps: bool = False) -> None:
    """Print reports, one below the other; with ``steps``, also their counts per step."""
    console.print(_shown_below(reports, steps, room(console)), soft_wrap=True)


def watch(reports: Callable[[], Sequence[Report]], steps: bool = False) -> None:
    """Print reports and refresh them every two seconds, until Ctrl-C."""
    try:
        with Live(auto_refresh=False) as live:
            while True:
                live.update(_shown_below(reports(), steps, room(live.console)), refresh=True)
                time.sleep(_WATCH_INTERVAL)
    except KeyboardInterrupt:
        pass


def as_json(report: Report) -> dict[str, object]:
    """Return a report as the object that ``status --json`` prints."""
    fields = dataclasses.asdict(report)
    del fields["count_steps"], fields["other_scopes"]
    return fields | {
        "scopes": report.scopes,
        "open": report.open,
        "lost": report.lost,
        "receiver": [
            {"is_running": is_receiving(node_dir), **dataclasses.asdict(counts)}
            for node_dir, counts in _receivers(report)
        ],
        "steps": [
            {**key._asdict(), "started": count.started, **dataclasses.asdict(count), "pending": count.pending}
            for key, count in report.by_step.items()
        ],
    }


def _shown_below(reports: Sequence[Report], steps: bool, width: int) -> RenderableType:
    """Return reports, one below the other, and at the end what their counts add up to."""
    shown = [_shown(report, steps, width) for report in reports]
    least = "(delivered, rejected …: at the exporter that has delivered least of the step)"
    of_steps = f"each step: {_SPANS}\neach step: {_DELIVERY}\n{least}\n" if steps else ""
    return Group(*shown, Text(f"{of_steps}each exporter: {_DELIVERY} + lost\nretried: batches sent again"))


def _shown(report: Report, steps: bool, width: int) -> RenderableType:
    dropped = sum(report.dropped.values())
    lines = [
        report.problem,
        f"started {report.started} = recorded {report.recorded} + dropped {dropped} + open {report.open}"
        f" + unfinished {report.unfinished}",
        *(f"recorded by {scope}: {n}" for scope, n in report.scopes.items() if report.other_scopes),
        *_reasons("dropped", report.dropped),
        *_reasons("left out on purpose", report.sampled_out),
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
        *_exporter_table(report, width),
        *map(Text, below),
        *(_step_table(report, width) if steps else ()),
    )


def _receivers(report: Report) -> Iterator[tuple[Path, ReceiverCounts]]:
    """Yield the node directories that have had a receiver, and its counts."""
    for directory in filter(None, report.directory.split(", ")):
        counts = read_counts(Path(directory))
        if counts is not None:
            yield Path(directory), counts


def _received(report: Report) -> Iterator[str]:
    for node_dir, counts in _receivers(report):
        address = read_address(node_dir) if is_receiving(node_dir) else None
        where = f"at {address.endpoint}" if address is not None else "ended"
        yield f"receiver {where}: {counts.problem or f'spans received: {counts.recorded}'}"
        if counts.sampled_out:
            yield f"received spans sampled out: {counts.sampled_out}"
        if counts.changed_ids:
            yield f"received spans with ids of other spans, which got new ones: {counts.changed_ids}"
        yield from _reasons("received spans refused", counts.refused_spans)
        yield from _reasons("requests refused", counts.refused_requests)


def _reasons(what: str, numbers: Mapping[str, int]) -> list[str]:
    return [f"{what} ({reason}): {number}" for reason, number in numbers.items()]


def _step_table(report: Report, width: int) -> Sequence[RenderableType]:
    """Return the table of steps."""
    reasons = [f"dropped: {reason}" for reason in report.dropped]
    headings = ("started", "recorded", *reasons, "open", "unfinished", *_DELIVERY_HEADINGS)
    rows = []
    for key, count in report.by_step.items():
        name = f"{key.step or 'none'}{' (validation)' if key.validate else ''}"
        dropped = (count.dropped.get(reason, 0) for reason in report.dropped)
        counts = (count.started, count.recorded, *dropped, count.open, count.unfinished)
        rows.append((name, *map(str, (*counts, *_delivery_counts(count)))))
    return _fitted("step", headings, rows, width)


def _exporter_table(report: Report, width: int) -> Sequence[RenderableType]:
    """Return the table of exporters."""
    recorded = report.recorded
    rows = [
        (name, *map(str, (recorded, *_delivery_counts(count), count.lost_of(recorded), count.retried)))
        for name, count in report.exporters.items()
    ]
    return _fitted("exporter", ("recorded", *_DELIVERY_HEADINGS, "lost", "retried"), rows, width)


def _fitted(
    name: str, headings: Sequence[str], rows: Sequence[tuple[str, ...]], width: int
) -> Sequence[RenderableType]:
    """Return a table of counts; on a narrow terminal, columns of zeros are left out first."""
    counts = zip(headings, zip(*(row[1:] for row in rows), strict=True), strict=False)
    ranks = {heading: 1 if set(of_heading) != {"0"} else 2 for heading, of_heading in counts}
    return fitted(columns_of(rows, {name: 0, **ranks}, [name]), width, "--json has all", padding=0)


def _delivery_counts(count: ExporterCount | StepCount) -> tuple[int, int, int, int]:
    return count.delivered, count.rejected, count.sampled_out, count.pending
