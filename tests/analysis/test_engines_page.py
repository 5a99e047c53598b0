"""docs/engines.md shows what the commands print, and names what the code has."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rollout.base import semconv
from otel_rollout.cli import app
from otel_rollout.otlp.engine_phases import PHASES
from otel_rollout.table import figures
from otel_rollout.table.location import location_of
from otel_rollout.table.query import Engine
from otel_rollout.table.store import Store
from tests.engine_spans import write_table

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```\n\$ otel-rollout (.*?)\n(.*?)```", PAGE, re.S)
QUERIES = re.findall(r'otel-rollout query "(.*?)"', PAGE)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the table that the page's first command writes."""
    place = tmp_path_factory.mktemp("page") / "rollouts"
    write_table(place)
    return place


def test_first_command_of_the_page_writes_a_table_and_says_nothing(tmp_path: Path) -> None:
    """The page announces no output, so a reader would take a warning for a fault."""
    command = [sys.executable, "-m", "tests.engine_spans", str(tmp_path / "engines")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("", "")


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command.split()[0] for command, _ in EXAMPLES])
def test_output_is_the_pages(command: str, shown: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page may leave out lines, and changes none."""
    monkeypatch.chdir(table.parent)
    ran = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "110"})
    assert ran.exit_code == 0, ran.output
    printed = [line.strip() for line in ran.output.splitlines()]
    assert [line for line in shown.splitlines() if line.strip() not in printed] == []


@pytest.mark.parametrize("query", QUERIES)
def test_queries_of_the_page_have_rows(query: str, table: Path) -> None:
    """Every step has requests."""
    assert len(Engine(Store(location_of(str(table))).open()).dicts(query)) == 6


@pytest.mark.parametrize("view", ["engine_requests", "engine_time", "engine_steps"])
def test_page_names_every_column(view: str, table: Path) -> None:
    """A new column needs its place in the table of views."""
    (row,) = re.findall(rf"\| `{view}` \|(.*)", PAGE)
    identity = {
        "run_id",
        "project",
        "experiment",
        "step",
        "step_text",
        "sample_index",
        "rollout_n",
        "validate",
        "trace_id",
    }
    further = {"span_id", "parent_span_id", "start_time", "start_ns"}
    columns = set(Engine(Store(location_of(str(table))).open()).columns_of(view)) - identity - further
    assert columns == set(re.findall(r"`(\w+)`", row))


def test_page_names_the_attributes_of_the_code() -> None:
    """Each time has the attribute that vLLM gives it."""
    names = (
        *(semconv.LATENCY_QUEUE, semconv.LATENCY_PREFILL, semconv.LATENCY_DECODE),
        *(semconv.LATENCY_FIRST_TOKEN, semconv.LATENCY_TOTAL, semconv.ENGINE_REQUEST),
        *(*PHASES, *figures.COLUMNS["engine_time"]),
    )
    assert [name for name in names if name not in PAGE] == []
