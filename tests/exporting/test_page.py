"""Check that the exporter of docs/extending.md does what the page says, as a package of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.api import CommitsBatches, FailureKind
from tests.exporting.page import module, python_blocks
from tests.fake_server import serving
from tests.sdk_spans import Rollouts

PROGRAM = """\
from otel_rollout import rollout_trace_attr, rollout_trace_op, score


@rollout_trace_op(kind="LLM")
def generate(messages):
    message = {"role": "assistant", "content": "408"}
    usage = {"prompt_tokens": 12, "completion_tokens": 3}
    return {"object": "chat.completion", "choices": [{"message": message}], "usage": usage}


with rollout_trace_attr(step=1, sample_index=7, rollout_n=2):
    generate([{"role": "user", "content": "17 * 24?"}])
    score("reward", 0.5, comment="exact match")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Install the page's exporter in a directory of its own, as pip does."""
    exporter, _, test = python_blocks()
    site = tmp_path / "site"
    info = site / "logbook_exporter-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: logbook-exporter\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[opentelemetry_traces_exporter]\nlogbook = logbook_exporter:LogbookExporter\n"
    )
    (site / "logbook_exporter.py").write_text(exporter)
    (tmp_path / "test_logbook.py").write_text(test)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def python(package: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the package's directory, with the package installed."""
    path = os.pathsep.join(filter(None, (str(package / "site"), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=package,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_exporter_of_the_page_delivers_what_spans_hold(package: Path) -> None:
    """Variables switch it on, its own ones reach the forwarder, and messages, tokens and scores arrive."""
    with serving() as server:
        given = {"OTEL_TRACES_EXPORTER": "logbook", "LOGBOOK_URL": server.uri}
        ran = python(package, "train.py", **given, OTEL_ROLLOUT_SPOOL_DIR=str(package / "spool"))
    assert f"3 spans delivered to the logbook at {server.uri}" in ran.stderr
    lines = [line for request in server.requests("/spans") for line in request.body.splitlines()]
    call, score, root = (json.loads(line) for line in lines)
    assert call["messages"] == [["user", "17 * 24?"], ["assistant", "408"]]
    assert (call["tokens_in"], call["tokens_out"]) == (12, 3)
    assert score["score"] == {"name": "reward", "value": 0.5, "comment": "exact match"}
    assert root["parent"] is None
    for entry in (call, score, root):
        identity = {name.removeprefix("rollout."): value for name, value in entry["identity"].items()}
        assert (identity["step"], identity["sample_index"], identity["rollout_n"]) == (1, 7, 2)
    assert len({entry["id"] for entry in (call, score, root)}) == 3


def test_wrong_value_of_an_exporters_variable_is_told(package: Path) -> None:
    """The program goes on, and its last line quotes the constructor."""
    given = {
        "OTEL_TRACES_EXPORTER": "logbook",
        "LOGBOOK_URL": "http://127.0.0.1:1",
        "LOGBOOK_TIMEOUT": "soon",
    }
    ran = python(package, "train.py", **given, OTEL_ROLLOUT_SPOOL_DIR=str(package / "spool"))
    assert ran.returncode == 0
    assert "LOGBOOK_TIMEOUT is 'soon'; expected a positive number of seconds" in ran.stderr


def test_suite_of_the_page_passes_outside_the_repository(package: Path) -> None:
    """The conformance suite needs nothing of this repository but the package."""
    ran = python(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_logbook.py")
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout


def test_appending_exporter_of_the_page_numbers_its_batches() -> None:
    """A batch goes to its number's address; a rejected one is the fault of a span in it."""
    rollouts = Rollouts("any")
    rollouts.trajectory()
    spans = rollouts.ended()
    with serving({"/batches/w": (200, {}, b"4"), "/batches/w/6": (400, {}, b"")}) as server:
        exporter = module()["AppendingLogbookExporter"](url=server.uri)
        assert isinstance(exporter, CommitsBatches)
        assert exporter.committed("w") == 4
        assert exporter.commit(iter(spans), "w", 5) is SpanExportResult.SUCCESS
        assert exporter.commit(iter(spans), "w", 6) is SpanExportResult.FAILURE
        exporter.shutdown()
    assert exporter.last_failure.kind is FailureKind.REJECTED
    (stored,) = server.requests("/batches/w/5")
    assert [json.loads(line)["name"] for line in stored.body.splitlines()] == [span.name for span in spans]
