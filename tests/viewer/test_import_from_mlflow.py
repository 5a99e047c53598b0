"""`otel-rollout import mlflow:URI` brings trajectories from MLflow into a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry import trace
from typer.testing import CliRunner

import otel_rollout
from otel_rollout.cli import app
from otel_rollout_mlflow import MlflowSpanExporter
from tests.sdk_spans import Rollouts, deliver
from tests.viewer.conftest import Rollout

PROJECT = "imported"
COLUMNS = ("path", "trace_id", "run_id", "state", "turns", "tool_calls", "tool_errors", "tokens_in", "reward")


def test_trajectories_of_mlflow_are_those_of_the_spool(
    rollout: Rollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their conversations; a second import adds nothing."""
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(tmp_path / "table"))
    command = ["import", rollout.location("mlflow"), "--to", "delta"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert ", 0 were there already" in first.stdout
    again = CliRunner().invoke(app, command)
    assert ": 0 spans imported" in again.stdout
    ours, theirs = (
        otel_rollout.open_table(place) for place in (str(tmp_path / "table"), rollout.location("table"))
    )
    assert ours.trajectories.sort("path").select(*COLUMNS).dicts() == (
        theirs.trajectories.sort("path").select(*COLUMNS).dicts()
    )
    for path, trace_id in rollout.ids.items():
        name = trace_id.split("-")[1]
        if path.startswith("2/"):  # the text of token ids is in MLflow, and not in the spool
            assert ours.trajectory(name).chat[0] == {"role": "user", "content": "Count."}
        else:
            assert ours.trajectory(name).chat == theirs.trajectory(name).chat
        assert ours.trajectory(name).scores == theirs.trajectory(name).scores


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a database of MLflow's, for a project whose imports go to a table beside it."""
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(tmp_path / "table"))
    monkeypatch.setenv("OTEL_ROLLOUT_PROJECT", PROJECT)
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")
def test_repeated_import_brings_the_newer_values_of_scores(uri: str, tmp_path: Path) -> None:
    """MLflow keeps one id for all values of a name; the table then has the newest value and comment."""
    rollouts = Rollouts(PROJECT, {"rollout.run.id": "run-1"})
    rollouts.identity["rollout.score_origin"] = "outside"
    exporter = MlflowSpanExporter(tracking_uri=uri)
    with rollouts.span("Agent.run", "AGENT") as root:
        pass
    for value, comment, new in ((0.0, "wrong", 2), (1.0, "right", 1), (1.0, "right again", 1)):
        with trace.use_span(root):
            rollouts.evaluation("reward", value, comment)
        deliver(exporter, rollouts.ended())
        for expected in (new, 0):
            ran = CliRunner().invoke(app, ["import", f"mlflow:{uri}", "--to", "delta"])
            assert f": {expected} span" in ran.stdout, ran.output
        table = otel_rollout.open_table(str(tmp_path / "table"))
        [score] = table.sql("SELECT value, comment FROM scores").dicts()
        assert score == {"value": value, "comment": comment}
    exporter.shutdown()


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")
def test_tool_that_is_called_by_its_name_keeps_its_arguments(uri: str, tmp_path: Path) -> None:
    """An imported call has the tool's own arguments, without those of the function that calls it."""
    rollouts = Rollouts(PROJECT, {"rollout.run.id": "run-1"})
    given = {"name": "calc", "arguments": {"x": 35}}
    content = {"input.value": json.dumps(given), "input.mime_type": "application/json"}
    with rollouts.span("Agent.run", "AGENT"), rollouts.span("call_tool", "TOOL", **content):
        pass
    exporter = MlflowSpanExporter(tracking_uri=uri)
    deliver(exporter, rollouts.ended())
    exporter.shutdown()
    assert CliRunner().invoke(app, ["import", f"mlflow:{uri}", "--to", "delta"]).exit_code == 0
    for source in (f"mlflow:{uri}", str(tmp_path / "table")):
        ran = CliRunner().invoke(app, ["export", "--from", source, "--format", "atif"])
        (call,) = json.loads(ran.stdout)["steps"][0]["tool_calls"]
        assert (call["function_name"], call["arguments"]) == ("calc", {"x": 35})


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")
def test_texts_that_are_json_read_as_recorded(uri: str, tmp_path: Path) -> None:
    """A row, a step, an extra or a comment that looks like JSON is the text that it was, also to ``show``."""
    texts = ["[1, 2]", '{"a":1}', '"q"', "[]", "{}"]
    rollouts = Rollouts(PROJECT, {"rollout.run.id": "run-1"})
    exporter = MlflowSpanExporter(tracking_uri=uri)
    for text in texts:
        rollouts.identity |= {"rollout.step": text, "rollout.sample_index": text}
        with rollouts.span("agent_loop", "AGENT", rollout__agent_name=text):
            rollouts.evaluation("verdict", text, text)
        deliver(exporter, rollouts.ended())
    exporter.shutdown()
    assert CliRunner().invoke(app, ["import", f"mlflow:{uri}", "--to", "delta"]).exit_code == 0
    table = otel_rollout.open_table(str(tmp_path / "table"))
    assert {(row["path"], row["agent_name"]) for row in table.trajectories.dicts()} == {
        (f"{text}/{text}/0", text) for text in texts
    }
    scores = table.sql("SELECT path, label, comment FROM scores JOIN trajectories USING (trace_id)").dicts()
    assert {(row["path"], row["label"], row["comment"]) for row in scores} == {
        (f"{text}/{text}/0", text, text) for text in texts
    }
    for text in texts:
        shown = CliRunner().invoke(app, ["show", f"{text}/{text}/0", "--from", f"mlflow:{uri}"])
        assert shown.exit_code == 0, shown.output


def test_export_reads_all_of_mlflow(rollout: Rollout, tmp_path: Path) -> None:
    """The trajectories of MLflow are those of the table; other commands say how to get there."""
    lines = {}
    for source in ("mlflow", "table"):
        made = tmp_path / source
        command = ["export", "--from", rollout.location(source), "--format", "atif", "--where", "step = 1"]
        ran = CliRunner().invoke(app, [*command, "--to", str(made)])
        assert ran.exit_code == 0, ran.output
        documents = [json.loads(path.read_text()) for path in made.rglob("trajectory.json")]
        lines[source] = {
            each["extra"]["path"]: (each["steps"], each["extra"]["scores"]) for each in documents
        }
    assert lines["table"]
    assert lines["mlflow"] == lines["table"]
