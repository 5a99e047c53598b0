"""Accounts on a terminal: as a table, again and again, or as progress."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from otel_rollout.account.report import ExporterCount, Report, StepCount

_WATCH_INTERVAL = 2.0
_PROGRESS_INTERVAL = 0.5
_SPANS = "started = recorded + dropped + open + unfinished"
_DELIVERY = "recorded = delivered + rejected + sampled out + pending"
_COUNTED = ("delivered", "rejected", "sampled out", "pending")


def show(reports: Sequence[Report], console: Console, steps: bool = False) -> None:
    """Print accounts, one below the other; with ``steps``, each per step as well."""
    for report in reports:
        console.print(_account(report, steps), soft_wrap=True)


def watch(reports: Callable[[], Sequence[Report]], steps: bool = False) -> None:
    """Show accounts anew every two seconds, until Ctrl-C."""
    try:
        with Live(auto_refresh=False) as live:
            while True:
                live.update(Group(*(_account(report, steps) for report in reports())), refresh=True)
                time.sleep(_WATCH_INTERVAL)
    except KeyboardInterrupt:
        pass


@contextmanager
def progress(report: Callable[[], Report]) -> Iterator[None]:
    """While the block delivers, show on a terminal how far it is, how fast, and what is left."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    columns = (
        TextColumn("delivering spans"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    over = threading.Event()
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", rate="")

        def update() -> None:
            while not over.wait(_PROGRESS_INTERVAL):
                counts = report().exporters.values()
                done = sum(count.delivered + count.rejected + count.sampled_out for count in counts)
                total = done + sum(count.pending for count in counts)
                speed = bar.tasks[task].speed or 0.0
                bar.update(task, completed=done, total=total, rate=f"{speed:.0f} spans/s", refresh=True)

        thread = threading.Thread(target=update, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _account(report: Report, steps: bool) -> RenderableType:
    dropped = sum(report.dropped.values())
    lines = [
        Text(report.directory, style="bold"),
        *([Text(report.problem)] if report.problem else []),
        Text(
            f"started {report.started} = recorded {report.recorded} + dropped {dropped} + open {report.open}"
            f" + unfinished {report.unfinished}"
        ),
    ]
    lines += [Text(f"dropped because of {reason}: {number}") for reason, number in report.dropped.items()]
    lines += [
        Text(f"trajectories sampled out ({reason}): {number}")
        for reason, number in report.sampled_out.items()
    ]
    lines += [
        Text(f"groups {what} ({reason}): {number}")
        for what, groups in (("delivered", report.groups_kept), ("sampled out", report.groups_sampled_out))
        for reason, number in groups.items()
    ]
    problems = [Text(f"{name}: {count.problem}") for name, count in report.exporters.items() if count.problem]
    targets = [
        Text(f"{name} delivers to {count.destination}")
        for name, count in report.exporters.items()
        if count.destination
    ]
    return Group(*lines, _table(report), *targets, *problems, *([_steps(report)] if steps else []))


def _steps(report: Report) -> Table:
    reasons = list(report.dropped)
    table = Table(
        caption=f"{_SPANS}\n{_DELIVERY}, at the exporter that is furthest behind",
        caption_justify="left",
        padding=0,  # eight counts in 80 columns
    )
    table.add_column("step", no_wrap=True)
    dropped = [f"dropped: {reason}" for reason in reasons]
    for heading in ("started", "recorded", *dropped, "open", "unfinished", *_COUNTED):
        table.add_column(heading, justify="right", overflow="fold")
    for key, count in report.by_step.items():
        name = f"{key.step or 'outside any'}{' (validation)' if key.validate else ''}"
        begun = (count.started, count.recorded, *(count.dropped.get(reason, 0) for reason in reasons))
        ended = (count.open, count.unfinished, *_counted(count))
        table.add_row(name, *map(str, begun + ended))
    return table


def _table(report: Report) -> Table:
    table = Table(
        caption=f"{_DELIVERY} + lost; retried: batches sent again", caption_justify="left", padding=0
    )
    table.add_column("exporter", no_wrap=True)
    for heading in ("recorded", *_COUNTED, "lost", "retried"):
        widest_word = max(map(len, heading.split()))
        table.add_column(heading, justify="right", min_width=widest_word)
    for name, count in report.exporters.items():
        numbers = (*_counted(count), count.lost_of(report.recorded), count.retried)
        table.add_row(name, str(report.recorded), *map(str, numbers))
    return table


def _counted(count: ExporterCount | StepCount) -> tuple[int, int, int, int]:
    return count.delivered, count.rejected, count.sampled_out, count.pending
