"""The demo's command: options that it refuses, and addresses that it prints."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import re
import sqlite3
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from otel_rollout import ExporterCount, Report
from otel_rollout.record.launch import at_exit
from otel_rollout_demo import cli, rollout_table, where_to_look

app = typer.Typer()
app.command()(cli.demo)


def shown(uri: str) -> str:
    """Return the text that the demo prints about the traces of a tracking URI."""
    console = Console(width=40)
    with console.capture() as capture:
        where_to_look.print_mlflow_pages(console, uri, cli.PROJECT_NAME, "run-1")
    return capture.get()


@pytest.fixture
def server() -> Any:
    """Return the address of an HTTP server that answers the demo as MLflow."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.endswith(f"get-by-name?experiment_name={cli.PROJECT_NAME}")
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"experiment": {"experiment_id": "42"}}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def test_relative_database_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forwarder runs in another directory, so a SQLite path is made absolute."""
    monkeypatch.chdir(tmp_path)
    assert where_to_look.absolute_uri("sqlite:///mlflow.db") == f"sqlite:///{tmp_path}/mlflow.db"
    assert where_to_look.absolute_uri("sqlite:////data/mlflow.db") == "sqlite:////data/mlflow.db"
    assert where_to_look.absolute_uri("http://127.0.0.1:5000") == "http://127.0.0.1:5000"


def test_database_is_shown_with_the_servers_command(tmp_path: Path) -> None:
    """For SQLite the demo prints the server's command and the experiment's address.

    Each is on one line.
    """
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE experiments (experiment_id INTEGER, name TEXT)")
        connection.execute("INSERT INTO experiments VALUES (7, ?)", (cli.PROJECT_NAME,))
    text = shown(f"sqlite:///{path}")
    assert f"mlflow server --backend-store-uri sqlite:///{path}\n" in text
    assert "  http://127.0.0.1:5000/#/experiments/7/traces\n" in text


def test_one_step_is_printed_as_address_and_as_search(server: str) -> None:
    """The demo prints the list's address, filtered by step, and a search in Python."""
    text = shown(server)
    query = text.partition(f"  {server}/#/experiments/42/traces?")[2].partition("\n")[0]
    pairs = [pair.split("=") for name, pair in parse_qsl(query) if name == "tag"]
    assert pairs == [["step", "1"], ["experiment_name", "run-1"]]
    python = [line.strip() for line in text.splitlines() if line.startswith("  mlflow.")]
    assert python == [
        f'mlflow.set_tracking_uri("{server}")',
        f'mlflow.set_experiment("{cli.PROJECT_NAME}")',
        "mlflow.search_traces(filter_string=\"tags.step = '1' AND tags.experiment_name = 'run-1'\")",
    ]


def test_installed_mlflow_reads_tags_from_the_address() -> None:
    """The web page of the installed MLflow takes the parameter `tag` from its address."""
    found = importlib.util.find_spec("mlflow")
    assert found is not None
    assert found.origin is not None
    scripts = (Path(found.origin).parent / "server" / "js" / "build" / "static" / "js").glob("*.js")
    parameters = re.compile(r'=\["q","pageSize",[^\]]*\],\w+=\["tag"\]')
    assert any(parameters.search(script.read_text()) for script in scripts)


def test_missing_experiment_is_replaced_by_the_list_of_experiments(tmp_path: Path) -> None:
    """Before the first delivery the address is that of all experiments.

    Nothing is created.
    """
    path = tmp_path / "mlflow.db"
    assert "http://127.0.0.1:5000/#/experiments\n" in shown(f"sqlite:///{path}")
    assert not path.exists()


def test_password_of_a_database_is_not_printed() -> None:
    """A database other than SQLite is printed as a placeholder.

    Its URI may hold a password.
    """
    assert "secret" not in shown("postgresql://me:secret@host/db")


def test_server_is_printed_with_the_experiments_id(server: str) -> None:
    """An MLflow server is asked for the experiment's id; no command is printed."""
    text = shown(f"{server}/")
    assert f"  {server}/#/experiments/42/traces\n" in text
    assert "mlflow server" not in text


def test_password_of_a_server_is_not_printed(server: str) -> None:
    """Credentials in a server's address are used to ask it, and not printed."""
    text = shown(server.replace("http://", "http://alice:secret@"))
    assert "secret" not in text
    assert f"  {server}/#/experiments/42/traces\n" in text


def test_server_that_does_not_answer_is_printed_without_an_id() -> None:
    """A server that does not answer raises nothing, and its address has no id."""
    assert "  http://127.0.0.1:9/#/experiments\n" in shown("http://127.0.0.1:9")


def test_unusable_address_is_refused_before_ray_starts() -> None:
    """The demo prints only the reason, and starts nothing."""
    ended = CliRunner().invoke(app, ["--tracking-uri", "ftp://host"])
    assert ended.exit_code == 2
    assert "whose scheme 'ftp' is not supported" in ended.output
    assert "Ray" not in ended.output


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray or torch the demo says what to install before it starts anything."""
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("ray", "torch") else object()
    )
    result = CliRunner().invoke(app, ["--model", "x"])
    assert result.exit_code == 2
    assert "ray, torch" in result.output
    assert "otel-rollout[demo,model]" in result.output


def test_interpreter_that_ray_cannot_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray gives its workers' interpreter to a shell without quotes, and waits for them without an end."""
    monkeypatch.setattr(sys, "executable", "/opt/my projects/bin/python")
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert "another folder: /opt/my projects/bin/python" in result.output.replace("\n", " ")


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--backend", "nowhere"], ["--n", "0"]])
def test_impossible_options_are_refused(arguments: list[str]) -> None:
    """A run without trajectories or without a destination is a usage error."""
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_commands_are_the_last_lines_on_the_screen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The line of delivery at exit, which the totals have told, appears only where spans are left."""
    monkeypatch.setattr(logging.getLogger("otel_rollout"), "level", logging.NOTSET)
    report = dataclasses.replace(Report.empty(), recorded=3, exporters={"spool": ExporterCount(delivered=3)})
    for name in ("_check_requirements", "require_places", "configure", "instrument"):
        monkeypatch.setattr(cli, name, lambda *_, **__: None)
    monkeypatch.setattr(cli, "_run", lambda *_: 0)
    monkeypatch.setattr(cli, "shutdown", lambda timeout: report)
    assert CliRunner().invoke(app, ["--backend", "spool"]).exit_code == 0
    at_exit.say(report, tmp_path)
    assert caplog.text == ""
    at_exit.say(dataclasses.replace(report, exporters={"spool": ExporterCount(pending=3)}), tmp_path)
    assert "All 3 are kept on disk" in caplog.text


@pytest.mark.parametrize("width", [50, 80])
def test_commands_at_the_end_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """They have the path from here, and a line of their own where the purpose beside them has no room."""
    beside = tmp_path / "here" / ".venv" / "bin"
    beside.mkdir(parents=True)
    for name in ("otel-rollout", "mlflow"):
        (beside / name).touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setattr(rollout_table, "_worth_a_look", lambda experiment: "1/29/1")
    console = Console(width=width)
    counts = {"delta": ExporterCount(delivered=1), "mlflow": ExporterCount(delivered=1)}
    delivered = dataclasses.replace(Report.empty(), exporters=counts)
    server = where_to_look.server_command(f"sqlite:///{tmp_path}/here/m.db")
    with console.capture() as capture:
        assert rollout_table.print_next(console, delivered, "run-1", server)
    lines = capture.get().splitlines()
    assert [line.partition("#")[0].rstrip() for line in lines if "venv" in line] == [
        *(f"  .venv/bin/otel-rollout {command}" for command in ("view", "report", "show 1/29/1")),
        "  .venv/bin/mlflow server --backend-store-uri sqlite:///m.db",
    ]
    assert not where_to_look.server_command("http://127.0.0.1:5000")
    assert max(len(line) for line in lines if "mlflow" not in line) <= width
