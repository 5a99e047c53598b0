"""Spans read back from each backend as one tree.

A new exporter adds its adapter to ``conftest.adapters``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.entry_points import load
from tests.conformance.backend import Adapter, differences, trees
from tests.sdk_spans import spans_of
from tests.spool_reader import read_directory, segment_lines, segments_below

REFERENCE = "otlp_proto_http"
NAMES = ("mlflow", "weave", "delta", "otlp", REFERENCE)

# A warning that MLflow causes.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory, adapters: dict[str, Adapter]) -> Path:
    """A recorded rollout, delivered to every backend by the forwarder."""
    directory = tmp_path_factory.mktemp("conformance")
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
        "OTEL_ROLLOUT_PROJECT": "conformance",
        "OTEL_ROLLOUT_EXPERIMENT": "recorded",
        "OTEL_TRACES_EXPORTER": ",".join(adapters),
        "OTEL_ROLLOUT_KEEP": "true",
    }
    for adapter in adapters.values():
        variables |= adapter.variables
    record = [sys.executable, "-m", "tests.conformance.recorded"]
    subprocess.run(record, env=variables, check=True)
    forward = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "forward"]
    subprocess.run(forward, env=variables, check=True)
    return directory / "spool"


def test_recorded_rollout_has_every_hard_case(spool: Path) -> None:
    """The recording has hard cases.

    It has errors, late scores, big and foreign text, siblings, guests and bare operations.
    """
    spans = read_directory(spool)
    names = {span.name for span in spans}
    assert names >= {"AgentLoop.run", "AgentLoop.slow", "stream", "GET /model", "score judge"}
    assert any(event.name == "exception" for span in spans for event in span.span.events)
    assert max(len(span.attributes.get("input.value", "")) for span in spans) > 100_000
    roots = {span.span.span_id: span for span in spans if not span.span.parent_span_id}
    assert len(roots) == 9
    late = [span for span in spans if span.name == "score judge"]
    assert late[0].span.start_time_unix_nano > roots[late[0].span.parent_span_id].span.end_time_unix_nano


@pytest.mark.parametrize("name", NAMES[:-1])
def test_backend_shows_the_trees_that_otlp_shows(
    spool: Path, adapters: dict[str, Adapter], name: str
) -> None:
    """All fields are as over OTLP, types included.

    Fields are names, parents, order, times, values, status, identity and scores.
    """
    adapter = adapters[name]
    reference = trees(adapters[REFERENCE].read("conformance"), adapter.shows)
    assert len(reference) == 9

    found = trees(adapter.read("conformance"))

    assert not differences(found, reference)


Lines = list[dict[str, Any]]


def span_of(line: Mapping[str, Any]) -> dict[str, Any]:
    span: dict[str, Any] = line["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    return span


def named(lines: Lines, name: str) -> dict[str, Any]:
    return next(span_of(line) for line in lines if span_of(line)["name"] == name)


def set_attribute(span: dict[str, Any], key: str, value: dict[str, Any]) -> None:
    [entry] = [entry for entry in span["attributes"] if entry["key"] == key]
    entry["value"] = value


def drop_a_span(lines: Lines) -> None:
    lines.remove(next(line for line in lines if span_of(line)["name"] == "AgentLoop.call_tool"))


def swap_a_parent(lines: Lines) -> None:
    named(lines, "AgentLoop.generate")["parentSpanId"] = named(lines, "AgentLoop.call_tool")["spanId"]


def alter_an_output(lines: Lines) -> None:
    set_attribute(named(lines, "AgentLoop.generate"), "output.value", {"stringValue": '{"text": "else"}'})


def lose_a_score(lines: Lines) -> None:
    span = named(lines, "score judge")
    span["attributes"] = [a for a in span["attributes"] if not a["key"].startswith("gen_ai.evaluation")]


def turn_a_bool_score_into_a_number(lines: Lines) -> None:
    span = named(lines, "score accepted")
    span["attributes"] = [a for a in span["attributes"] if a["key"] != "gen_ai.evaluation.score.label"]


def change_an_identity(lines: Lines) -> None:
    set_attribute(named(lines, "AgentLoop.generate"), "rollout.step", {"intValue": "4"})


@pytest.fixture
def one_trajectory(spool: Path) -> Lines:
    """The lines of the trajectory with tool calls and late scores."""
    lines = [orjson.loads(line) for path in segments_below(spool) for line in segment_lines(path)]
    trace = next(span_of(line)["traceId"] for line in lines if span_of(line)["name"] == "score judge")
    return [line for line in lines if span_of(line)["traceId"] == trace]


@pytest.mark.parametrize("name", NAMES)
def test_comparison_notices_a_change(
    one_trajectory: Lines, adapters: dict[str, Adapter], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any changed or lost span or score is a difference.

    A changed span has another parent, output or identity; a changed score has another type.
    """
    adapter = adapters[name]
    for variable, value in adapter.variables.items():
        monkeypatch.setenv(variable, value)
    exporter = load(name, {})

    def exported_and_read(change: Callable[[Lines], None]) -> dict[str, Any]:
        lines = orjson.loads(orjson.dumps(one_trajectory))
        project, trace = f"changed-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        for line in lines:
            span_of(line)["traceId"] = trace
            set_attribute(span_of(line), "rollout.project_name", {"stringValue": project})
        change(lines)
        spans = [span for line in lines for span in spans_of(orjson.dumps(line))]
        assert exporter.export(spans) is SpanExportResult.SUCCESS
        return {"tree": list(trees(adapter.read(project)).values())}

    unchanged = exported_and_read(lambda lines: None)
    assert exported_and_read(lambda lines: None) == unchanged
    changes = (
        drop_a_span,
        swap_a_parent,
        alter_an_output,
        lose_a_score,
        turn_a_bool_score_into_a_number,
        change_an_identity,
    )
    for change in changes:
        assert exported_and_read(change) != unchanged, change.__name__
    exporter.shutdown()
