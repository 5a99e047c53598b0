"""Waiting times: what tests shorten, and how processes get them."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from otel_rollout.base.waits import WAITS_VARIABLE, Waits, waits
from otel_rollout.record.launch.launcher import _forwarder_environment
from otel_rollout.settings import Settings
from tests.waits import scaled, set_waits

ROOT = Path(__file__).parents[2]
MODULES = [path for room in ("otel_rollout", "exporters") for path in (ROOT / room).rglob("*.py")]
TIME = re.compile(
    r"(\b|_)(SECONDS|INTERVAL|DEADLINE|TIMEOUT|LINGER|POLL|WAIT|PAUSE|GRACE|PATIENCE|DELAY|MINIMUM_AGE)$"
)
OTHER_TIMES = {
    "exporters/otel_rollout_mlflow/settings.py:DEFAULT_TIMEOUT": "default of a setting",
    "exporters/otel_rollout_otlp/settings.py:DEFAULT_TIMEOUT": "default of a setting",
    "exporters/otel_rollout_weave/settings.py:DEFAULT_TIMEOUT": "default of a setting",
    **{
        f"otel_rollout/account/span_metrics.py:_{of}_SECONDS": "bounds of a histogram"
        for of in ("CALL", "TOOL", "TRAJECTORY")
    },
    "otel_rollout/look/analysis/health/workers.py:_MIN_SECONDS": "a threshold of a check",
    "otel_rollout/cli/report_output.py:_WATCH_INTERVAL": "a person watches",
    "otel_rollout/otlp/engine_phases.py:MAX_SECONDS": "a bound of a number",
    "otel_rollout/record/receiver/intake.py:_CHECK_INTERVAL": "milliseconds",
    "otel_rollout/record/recording/flusher.py:LOCK_WAIT": "milliseconds",
    "otel_rollout/record/recording/flusher.py:CHECK_INTERVAL": "milliseconds",
    "otel_rollout/redaction/redaction.py:PAUSE": "a factor",
    "otel_rollout/record/recording/tokenizers.py:_PAUSE": "milliseconds",
    "otel_rollout/spool/locks.py:_ATTEMPT_INTERVAL": "milliseconds",
    "otel_rollout/look/sources/private_table.py:_MINIMUM_AGE": "of what a killed process has left",
    "exporters/otel_rollout_mlflow/addresses.py:_TIMEOUT": "of a page",
    "otel_rollout/look/web/request.py:PENDING_SECONDS": "of a page",
    "otel_rollout/look/web/request.py:REFRESH_SECONDS": "of a page",
    "otel_rollout/look/web/run_pages.py:_PATIENCE": "of a page",
    "otel_rollout/look/web/server.py:_GRACE": "of a page",
    "otel_rollout/look/web/snapshot.py:LIVE_SECONDS": "of a page",
}
"""Module and name of numbers that are no waiting times of delivery, and what they are."""


def test_scaled_waits_have_shorter_pauses_and_the_same_limits() -> None:
    """A limit protects whoever waits on a slow machine; very short pauses stay as they are."""
    usual, short = dataclasses.asdict(Waits()), dataclasses.asdict(scaled(0.1))
    shortened = {name for name in usual if short[name] < usual[name]}
    assert shortened == {
        field.name for field in dataclasses.fields(Waits) if field.type == "Pause" and field.name != "flush"
    }
    assert {"poll", "idle", "retry", "table_commit"} <= shortened
    assert short["clean_up"] == pytest.approx(0.2)
    assert min(short.values()) == usual["flush"], "a process that looks all the time helps nobody"


def test_changed_waits_hold_here_and_in_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever needs a waiting time asks for it when it is needed."""
    set_waits(monkeypatch, idle=0.125, threads=7)
    assert (waits().idle, waits().threads, waits().close) == (0.125, 7, Waits().close)
    code = "from otel_rollout.base.waits import waits; print(waits().idle)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "0.125\n"
    given = _forwarder_environment(os.environ, Settings())
    assert given[WAITS_VARIABLE] == os.environ[WAITS_VARIABLE]
    monkeypatch.delenv(WAITS_VARIABLE)
    assert waits() == Waits()


@pytest.mark.parametrize(
    "value",
    ["", "0.1", "[]", "{", '{"idle": "x"}', '{"idle": -1}', '{"idle": 1e400}', '{"idle": null}', '{"x": 1}'],
)
def test_malformed_variable_changes_nothing(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tests set it, but whatever it holds, training goes on."""
    monkeypatch.setenv(WAITS_VARIABLE, value)
    assert waits() == Waits()


def test_every_waiting_time_is_in_one_object() -> None:
    """Elsewhere a module has no number that is named like a waiting time, but for a few of other kinds."""
    found = {
        f"{path.relative_to(ROOT)}:{name.id}"
        for path in MODULES
        for assigned in ast.parse(path.read_text()).body
        if isinstance(assigned, (ast.Assign, ast.AnnAssign))
        and any(
            isinstance(each, ast.Constant) and type(each.value) in (int, float) for each in ast.walk(assigned)
        )
        for name in ast.walk(assigned)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and TIME.search(name.id)
    }
    assert found == OTHER_TIMES.keys()
