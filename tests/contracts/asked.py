"""Ask the product about recorded spans, in this process: commands, pages, metrics, tail sampling."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import urlencode

from starlette.testclient import TestClient
from typer.testing import CliRunner

from otel_rollout.account.span_metrics import SpanMetrics
from otel_rollout.cli import app
from otel_rollout.deliver.tail_rules import TrajectoryOutcome
from otel_rollout.look.sources.private_table import fill
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout.look.web.app import Site
from otel_rollout.look.web.live import Live
from otel_rollout.look.web.snapshot import table_origin
from otel_rollout.table.location import location_of
from otel_rollout.table.store import Store
from tests.contracts.made_spans import EXPERIMENT, Made, lines_of

_TAG = re.compile(r"<style>.*?</style>|<[^>]*>", re.DOTALL)


class Places(NamedTuple):
    """Where spans are: a file of OTLP/JSON lines, and a table."""

    spool: Path
    table: Path


@contextmanager
def places_of(spans: Sequence[Made]) -> Iterator[Places]:
    """Write spans into a file and into a table, in two commits."""
    with tempfile.TemporaryDirectory() as directory:
        places = Places(Path(directory) / "lines.jsonl", Path(directory) / "table")
        places.spool.write_text(lines_of(spans))
        recorded = list(SpoolSource(places.spool).every_span())
        half = len(recorded) // 2
        store = Store(location_of(str(places.table)))
        fill(store, recorded[:half])
        fill(store, recorded[half:])
        yield places


def printed(source: Path | str, *arguments: object, codes: Sequence[int] = (0,)) -> str:
    """Return what a command prints."""
    given = [*map(str, arguments), "--from", str(source)]
    ran = CliRunner().invoke(app, given, env={"COLUMNS": "250"})
    assert ran.exit_code in codes, f"{given}: {ran.output}"
    return ran.stdout


def parsed(source: Path | str, *arguments: object, codes: Sequence[int] = (0,)) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(printed(source, *arguments, codes=codes))


def rows(source: Path, command: str) -> list[dict[str, Any]]:
    """Return all rows of a command's list."""
    found: list[dict[str, Any]] = parsed(source, command, "--limit", 0, "--format", "json")
    return found


def cells(text: str) -> list[list[str]]:
    """Return the cells of a table on a terminal."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]


class Pages:
    """The pages of a table."""

    def __init__(self, table: Path) -> None:
        self._live = Live(table_origin(Store(location_of(str(table)))), period=3600)

    def __enter__(self) -> Pages:
        self._live.start()
        self._client = TestClient(Site(self._live).app())
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def body(self, path: str, run: str, project: str, **fields: str) -> str:
        """Return a page of a run."""
        asked = urlencode({"run": run, "project": project, "experiment": EXPERIMENT, **fields})
        answer = self._client.get(f"{path}?{asked}")
        assert answer.status_code == 200, words(answer.text)
        return answer.text


def words(body: str) -> str:
    """Return the words of a page, in one line."""
    return " ".join(unescape(_TAG.sub(" ", body)).split())


def page_rows(body: str) -> list[dict[str, str]]:
    """Return heading → cell of each row of a page's table."""
    headings = [words(heading) for heading in re.findall(r"<th[^>]*>(.*?)</th>", body, re.DOTALL)]
    found = (
        re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in re.findall(r"<tr>.*?</tr>", body, re.S)
    )
    return [dict(zip(headings, map(words, row), strict=True)) for row in found if row]


# --- metrics and tail sampling ------------------------------------------------------------------------------


class _Meter:
    """A meter whose instruments keep what they are given."""

    def __init__(self) -> None:
        self.measured: list[tuple[str, float, dict[str, Any]]] = []

    def create_histogram(self, name: str, *_: object, **__: object) -> Any:
        return self._instrument(name)

    create_counter = create_up_down_counter = create_histogram

    def _instrument(self, name: str) -> Any:
        meter = self

        class Instrument:
            def record(self, value: float, labels: dict[str, Any]) -> None:
                meter.measured.append((name, value, dict(labels)))

            add = record

        return Instrument()


def measured(spans: Iterable[Made]) -> list[tuple[str, float, dict[str, Any]]]:
    """Return what the MeterProvider gets of spans in the order in which they end: children first."""
    meter = _Meter()
    with patch("otel_rollout.account.span_metrics.metrics.get_meter", lambda *_: meter):
        SpanMetrics().observe(lines_of(spans).encode())
    return meter.measured


def children_first(spans: Sequence[Made]) -> list[Made]:
    """Return the spans of a trace in an order in which each is behind those inside it."""
    known = {span.span for span in spans}
    found: list[Made] = []

    def add(inside: int | None) -> None:
        for span in spans:
            if inside == (span.inside if span.inside in known else None):
                add(span.span)
                found.append(span)

    add(None)
    return found


def outcome_of(spans: Iterable[Made]) -> TrajectoryOutcome:
    """Return what tail sampling knows of a trajectory."""
    outcome = TrajectoryOutcome("reward")
    for span in spans:
        outcome.add(lines_of([span]).encode())
    return outcome
