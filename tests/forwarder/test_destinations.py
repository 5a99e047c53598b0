"""Test destinations: each exporter names where spans are, without credentials."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typer.testing import CliRunner

import otel_rollout
from otel_rollout import rollout_trace_attr
from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.cli import app
from otel_rollout.exporting.entry_points import destination_of
from otel_rollout.exporting.spool_exporter import KeptInSpool
from otel_rollout.spool import layout
from otel_rollout_mlflow import MlflowSpanExporter
from otel_rollout_otlp import OtlpSpanExporter
from otel_rollout_weave import WeaveSpanExporter
from tests.forwarders import wait_for_end

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("options", "destination"),
    [
        ({"tracking_uri": "http://h:5000/"}, "MLflow experiment 'p' at http://h:5000"),
        ({"tracking_uri": f"https://u:{SECRET}@h/m?a={SECRET}"}, "MLflow experiment 'p' at https://h/m"),
        ({"tracking_uri": f"postgresql://u:{SECRET}@h/db"}, "MLflow experiment 'p' at postgresql://h/db"),
        ({"tracking_uri": "http://h", "experiment_name": "e"}, "MLflow experiment 'e' at http://h"),
        ({"tracking_uri": "http://h", "experiment_id": "7"}, "MLflow experiment with id 7 at http://h"),
    ],
)
def test_mlflow_names_its_experiment_and_address(options, destination):
    """The destination is the experiment of the project's spans, without credentials."""
    assert destination_of(MlflowSpanExporter(**options), "p") == destination


def test_relative_sqlite_path_is_shown_in_full(tmp_path, monkeypatch):
    """The path can be pasted into `mlflow server --backend-store-uri` anywhere."""
    monkeypatch.chdir(tmp_path)
    exporter = MlflowSpanExporter(tracking_uri="sqlite:///mlflow.db")
    assert destination_of(exporter, "p") == f"MLflow experiment 'p' at sqlite:///{tmp_path}/mlflow.db"


def test_weave_names_its_project_before_it_connects():
    """The page's address needs the entity, which only W&B knows."""
    exporter = WeaveSpanExporter(api_key=SECRET, base_url="http://127.0.0.1:1", trace_server_url="http://t")
    assert destination_of(exporter, "p").startswith("W&B Weave project 'p' at http")
    named = WeaveSpanExporter(api_key=SECRET, entity="team", base_url="http://127.0.0.1:1")
    assert destination_of(named, "p").startswith("W&B Weave project 'team/p' at http")


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json", "grpc"])
def test_otlp_names_its_endpoint(protocol):
    """Headers, which hold credentials, are not shown."""
    exporter = OtlpSpanExporter(
        endpoint="http://collector:4318/v1/traces", protocol=protocol, headers={"authorization": SECRET}
    )
    shown = destination_of(exporter, "p")
    exporter.shutdown()
    assert shown.startswith("the OTLP endpoint ")
    assert "collector:4318" in shown
    assert SECRET not in shown


def test_exporter_without_destination_is_shown_by_name():
    """The console exporter's destination is the forwarder's own output."""
    assert destination_of(InMemorySpanExporter(), "p") == ""
    assert destination_of(KeptInSpool(), "p") == "the spool, for another program to read"
    assert destination_of(ConsoleSpanExporter(), "p") != ""


@pytest.mark.usefixtures("forwarder")
def test_status_shows_destinations(tracing, tmp_path: Path):
    """Destinations are in the report, as text and as JSON."""
    with rollout_trace_attr(step=1):
        pass
    report = otel_rollout.shutdown(30)
    place = f"the file {tmp_path}/spool-delivered.jsonl"
    assert report.exporters["test-file"].destination == place
    shown = CliRunner().invoke(app, ["status"]).stdout
    assert f"test-file delivers to {place}" in "".join(shown.splitlines()).replace("  ", " ")
    (as_json,) = orjson.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)
    assert as_json["exporters"]["test-file"]["destination"] == place


def test_command_warns_of_unknown_variables(monkeypatch):
    """The warning is on standard error, before the command's output."""
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIRR", "/elsewhere")
    ended = CliRunner().invoke(app, ["status", "--json"])
    assert "Did you mean 'OTEL_ROLLOUT_SPOOL_DIR'?" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["forward", "--to", "mlfow"], "mlflow"),
        (["replay", "x", "--to", "weve"], "weave"),
        (["show", "--from", "mlfow:http://127.0.0.1:1"], "mlflow"),
        (["demo", "--backend", "mlfow"], "mlflow"),
    ],
)
def test_command_suggests_the_exporter_for_a_misspelled_name(arguments, meant):
    """Without a similar name the command lists the installed exporters."""
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 2
    assert f"'{meant}" in ended.stderr


def test_forward_by_hand_names_the_project_of_the_run(fresh_process, test_exporters, tmp_path, monkeypatch):
    """The ledger has the run's experiment, whatever project variables name."""
    target = tmp_path / "away"
    Path(f"{target}.fault").write_text("unavailable")
    otel_rollout.configure(
        {"test-faulty": {"path": str(target)}}, project_name="math", forwarder_linger=0, shutdown_timeout=0
    )
    with rollout_trace_attr(step=1):
        pass
    otel_rollout.shutdown(0)
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    wait_for_end(node_dir)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("OTEL_ROLLOUT_PROJECT", "another")
    command = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "forward", "--to", "mlflow"]
    subprocess.run(command, check=True, timeout=240)
    destination = read_ledger(node_dir).destinations["mlflow"]
    assert destination == f"MLflow experiment 'math' at sqlite:///{tmp_path}/mlflow.db"
