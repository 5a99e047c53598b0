"""Check a finished schedule: ended spans have arrived, and all adds up."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from otel_rollout.account import node_report
from otel_rollout.account.report import Report
from tests.soak import account
from tests.soak.run import Run
from tests.soak.target import Keeper
from tests.spool_reader import read_directory


def violations(run: Run) -> list[str]:
    """Everything that is not as it must be, each in a sentence."""
    if not run.node_dir.exists():
        return []
    entries = account.read(run.accounts)
    report = node_report.report(run.node_dir, run.settings)
    found = [*_of_the_account(report), *_of_what_was_said(run)]
    found += _of_the_disk(run, report)
    for name in run.targets:
        found += _of_the_target(run, name, entries, report)
    return found


def _of_the_account(report: Report) -> Iterator[str]:
    dropped = sum(report.dropped.values())
    if report.open or report.unfinished < 0 or report.lost:
        yield f"open {report.open}, unfinished {report.unfinished}, lost {report.lost}"
    if report.started != report.recorded + dropped + report.unfinished:
        yield f"started {report.started} ≠ {report.recorded} + {dropped} + {report.unfinished}"
    for name, count in report.exporters.items():
        if (count.delivered, count.pending, count.rejected) != (report.recorded, 0, 0):
            yield f"of {report.recorded} recorded, {name}: {count}"
    steps = report.by_step.values()
    for what in ("started", "recorded", "open", "unfinished"):
        of_steps, of_run = sum(getattr(step, what) for step in steps), getattr(report, what)
        if of_steps != of_run:
            yield f"{what}: the steps have {of_steps} spans, the run {of_run}"


def _of_the_target(run: Run, name: str, entries: list[account.Entries], report: Report) -> Iterator[str]:
    """The writers' own accounts against what arrived."""
    target = run.targets[name]
    taken = target.taken() if isinstance(target, Keeper) else _visible(target.url, run.settings.project_name)
    ended = frozenset().union(
        *(entry.ended | entry.root for entry in entries)
    )  # open roots are ended for them
    noted = ended.union(*(entry.started for entry in entries))
    missing, dropped = ended - taken.keys(), sum(report.dropped.values())
    if len(missing) > dropped:
        yield f"{name}: {len(missing)} spans that ended did not arrive, {dropped} were counted as dropped"
    unknown = taken.keys() - noted
    # A writer that is killed may not have noted what it did last, once in each thread.
    if len(unknown) > len(entries) or dropped > len(missing) + len(entries):
        yield f"{name}: {len(unknown)} spans nobody noted; {dropped} dropped, but {len(missing)} missing"
    if len(taken) != report.recorded:
        yield f"{name}: {len(taken)} spans arrived, {report.recorded} were recorded"
    if isinstance(target, Keeper):
        again = target.needlessly_sent(run.killed)
        if again and run.schedule.disk_megabytes is None:  # on a full disk it cannot be noted that they had
            yield f"{name}: {len(again)} spans were sent again though they had arrived"
    elif twice := [span for span, times in taken.items() if times > 1]:
        yield f"{name}: {len(twice)} spans are shown more than once"


def _visible(uri: str, project: str) -> Counter[int]:
    """How often MLflow shows each span."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what MLflow's own imports warn about is not ours to fix
        from mlflow import MlflowClient

    client, spans, page = MlflowClient(tracking_uri=uri), Counter[int](), None
    experiment = client.get_experiment_by_name(project)
    while experiment is not None:
        traces = client.search_traces([experiment.experiment_id], max_results=200, page_token=page)
        spans.update(int(span.span_id, 16) for trace in traces for span in trace.data.spans)
        page = traces.token
        if not page:
            break
    return spans


def _of_the_disk(run: Run, report: Report) -> Iterator[str]:
    """An independent reader finds every line whole, and every span once."""
    spans = Counter(recorded.span.span_id for recorded in read_directory(run.node_dir))
    if len(spans) != report.recorded or spans.total() != len(spans):
        yield f"on disk there are {spans.total()} lines of {len(spans)} spans; recorded {report.recorded}"


def _of_what_was_said(run: Run) -> Iterator[str]:
    """Nothing surfaces in the job, and nothing unforeseen happens in the forwarder."""
    if run.schedule.disk_megabytes is None:
        yield from _tracebacks(run.node_dir / "forwarder.log")
    yield from _tracebacks(run.log)


def _tracebacks(log: Path) -> Iterator[str]:
    if log.exists() and "Traceback" in (text := log.read_text()):
        yield f"{log.name}: {text[text.index('Traceback') :][:2000]}"
