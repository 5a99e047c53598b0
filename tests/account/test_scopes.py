"""The delivery report counts recorded spans by instrumentation scope."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import otel_rollout
from otel_rollout import Report, rollout_trace_attr, rollout_trace_op
from otel_rollout.account.report import bounded_scopes
from otel_rollout.record import runtime
from otel_rollout.record.recording.provider import RecordingTracerProvider
from otel_rollout.spool import layout
from otel_rollout.spool.scope_rows import OTHER_SCOPES, SCOPE_ROWS
from tests.cli.command import run
from tests.spool_reader import Recorded
from tests.waiting import wait_for

OPENAI = "openinference.instrumentation.openai"
KILLED = """
import os, signal
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otel_rollout import rollout_trace_attr
trace.set_tracer_provider(TracerProvider())
with rollout_trace_attr(step=1):
    for _ in range(5):
        trace.get_tracer("app").start_span("inside").end()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@rollout_trace_op
def op() -> None: ...


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """Set an SDK provider, as an application does."""
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return provider


def test_status_counts_spans_of_joined_libraries_by_scope(
    application: TracerProvider, recorded: Callable[[], list[Recorded]]
) -> None:
    """The scopes add up to the recorded spans, which carry these scopes in the spool."""
    with rollout_trace_attr(step=1):
        op()
        for _ in range(3):
            application.get_tracer(OPENAI, "0.1").start_span("ChatCompletion").end()
        application.get_tracer("app").start_span("request").end()
    application.get_tracer("app").start_span("outside any trajectory").end()
    report = otel_rollout.status()
    assert report.scopes == {"otel_rollout": 2, OPENAI: 3, "app": 1}
    assert sum(report.scopes.values()) == report.recorded == 6
    scopes = [span.scope for span in recorded()]
    assert {scope: scopes.count(scope) for scope in scopes} == report.scopes


def test_spans_of_our_own_provider_count_by_scope(recorded: Callable[[], list[Recorded]]) -> None:
    """Tracers of the recording provider count for the scopes that they were made for."""
    active = runtime.current()
    assert active is not None
    tracer = RecordingTracerProvider(active.writer).get_tracer(OPENAI)
    with rollout_trace_attr(step=1), tracer.start_as_current_span("ChatCompletion"):
        op()
    assert otel_rollout.status().scopes == {"otel_rollout": 2, OPENAI: 1}


def test_counts_by_scope_survive_a_kill(tracing: None, application: TracerProvider) -> None:
    """Counts of a killed process and of this one add up, before and after crash recovery."""
    with rollout_trace_attr(step=1):
        application.get_tracer("app").start_span("inside").end()
    killed = subprocess.run([sys.executable, "-c", KILLED], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    first = otel_rollout.status()  # crash recovery may have ended the killed root already
    assert first.recorded in (7, 8)
    assert first.scopes == {"otel_rollout": first.recorded - 6, "app": 6}
    report = wait_for(
        lambda: (found := otel_rollout.status()) and found.recorded == 8 and found, what="crash recovery"
    )
    assert report.scopes == {"otel_rollout": 2, "app": 6}
    assert otel_rollout.shutdown(30).scopes == report.scopes


def test_removed_spool_counts_by_scope_from_the_beginning(
    tracing: None, application: TracerProvider, tmp_path: Path
) -> None:
    """After somebody removed the spool, the scopes add up to the spans recorded since."""
    with rollout_trace_attr(step=1):
        for _ in range(4):
            application.get_tracer("app").start_span("lost").end()
    active = runtime.current()
    assert active is not None
    assert active.writer.flush(10)

    def removed() -> bool:  # the forwarder may write a file meanwhile
        shutil.rmtree(tmp_path / "spool", ignore_errors=True)
        return not (tmp_path / "spool").exists()

    wait_for(removed, what="the removal")

    def created_again() -> bool:
        with rollout_trace_attr(step=1):
            application.get_tracer("app").start_span("kept").end()
        return (tmp_path / "spool").exists() and bool(layout.node_directories(tmp_path / "spool"))

    wait_for(created_again, what="the spool's creation")
    report = wait_for(
        lambda: (found := otel_rollout.status()) and found.recorded and found, what="a readable report"
    )
    assert report.scopes["app"] == report.scopes["otel_rollout"] == report.recorded / 2


def test_reports_of_machines_add_up_by_scope() -> None:
    """Rows of one scope are added; the scopes stay bounded, and their sum stays the same."""
    many = {f"scope {number}": number for number in range(1, 60)}
    reports = [
        Report(10, 10, 0, {}, {}, {}, {}, {}, "one", dict, other_scopes={"app": 4}),
        Report(9, 9, 0, {}, {}, {}, {}, {}, "two", dict, other_scopes={"app": 1, OPENAI: 2}),
        Report(3, 3, 0, {}, {}, {}, {}, {}, "of an older version", dict),
    ]
    assert Report.merged(reports).scopes == {"otel_rollout": 15, "app": 5, OPENAI: 2}
    bounded = bounded_scopes({OTHER_SCOPES: 5, **many})
    assert len(bounded) == SCOPE_ROWS
    assert sum(bounded.values()) == 5 + sum(many.values())
    assert (bounded["scope 59"], list(bounded)[-1]) == (59, OTHER_SCOPES)


def test_command_shows_scopes_only_beside_other_libraries(tracing: None, application: TracerProvider) -> None:
    """`status` has a row per scope once there is another one than ours; `--json` always has them."""
    with rollout_trace_attr(step=1):
        op()
    assert "recorded by" not in run("status")
    with rollout_trace_attr(step=1):
        application.get_tracer(OPENAI).start_span("ChatCompletion").end()
    output = run("status")
    assert "recorded by otel_rollout: 3" in output
    assert f"recorded by {OPENAI}: 1" in output
    (shown,) = json.loads(run("status", "--json"))
    assert shown["scopes"] == {"otel_rollout": 3, OPENAI: 1}


@pytest.mark.usefixtures("forwarder")
def test_unreadable_spool_leaves_the_counts_of_this_process(
    tracing: None, application: TracerProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a readable spool, the report has this process's counts by scope, too."""
    with rollout_trace_attr(step=1):
        application.get_tracer("app").start_span("inside").end()
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    ledger = node_dir / "ledger.sqlite"
    wait_for(ledger.exists, what="the ledger")
    monkeypatch.setattr(
        "otel_rollout.account.node_report.check_private",
        lambda *_: (_ for _ in ()).throw(PermissionError(13, os.strerror(13))),
    )
    report = otel_rollout.status()
    assert report.problem is not None
    assert report.scopes == {"otel_rollout": 1, "app": 1}


def test_summary_counts_one_span_in_the_singular() -> None:
    """One is no plural."""
    assert Report(1, 1, 0, {}, {}, {}, {}, {}, "one", dict).summary().startswith("1 span recorded; ")
