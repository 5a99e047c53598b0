"""What the exporter makes of a target that is missing, busy, wrong or not ours."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from mlflow import MlflowClient
from mlflow_support import stored
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.api import FailureKind
from otel_rollout_mlflow import MlflowSpanExporter
from tests.sdk_spans import Rollouts, deliver


def refused(exporter: MlflowSpanExporter, rollouts: Rollouts):
    """Export one span, insist on a failure and return it."""
    with rollouts.span("Agent.run", "AGENT"):
        pass
    assert exporter.export(rollouts.ended()) is SpanExportResult.FAILURE
    assert exporter.last_failure is not None
    return exporter.last_failure


def test_an_old_server_is_named_as_such(fake_server, rollouts, exporter_for):
    """A server before 3.14 is REFUSED with both versions, and taken once it has been upgraded."""
    fake_server.answers["/version"] = (200, {}, b"3.10.1")
    exporter = exporter_for(fake_server.uri)

    failure = refused(exporter, rollouts)

    assert failure.kind is FailureKind.REFUSED
    assert "3.10.1" in failure.message
    assert "3.14" in failure.message
    fake_server.answers["/version"] = (200, {}, b"3.14.0")
    with rollouts.span("Agent.run"):
        pass
    deliver(exporter, rollouts.ended())
    assert exporter.last_failure is None


def test_a_server_that_is_not_mlflow_is_recognised(fake_server, rollouts, exporter_for):
    """A web page where the version should be is REFUSED, pointing to the address that was set."""
    exporter = exporter_for(fake_server.uri)
    for answer in ((200, {}, b"<html>hello</html>"), (404, {}, b"<html>not here</html>")):
        fake_server.answers["/version"] = answer
        failure = refused(exporter, rollouts)
        assert failure.kind is FailureKind.REFUSED
        assert "MLFLOW_TRACKING_URI" in failure.message


def test_a_silent_server_is_unavailable(server_uri, rollouts, exporter_for):
    """A server that does not answer in time is UNAVAILABLE."""
    failure = refused(exporter_for(server_uri, timeout=0.0001), rollouts)

    assert failure.kind is FailureKind.UNAVAILABLE


def test_credentials_are_sent_and_never_shown(fake_server, rollouts, exporter_for, monkeypatch):
    """User name and password of the URI become basic authentication and appear in no message."""
    fake_server.answers["/v1/traces"] = (401, {}, b'{"message": "hunter2 is wrong"}')
    exporter = exporter_for(fake_server.uri.replace("//", "//alice:hunter2@"))

    failure = refused(exporter, rollouts)

    assert failure.kind is FailureKind.REFUSED
    assert "hunter2" not in failure.message
    assert fake_server.received[-1][1]["Authorization"] == "Basic YWxpY2U6aHVudGVyMg=="

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret-token")
    failure = refused(exporter_for(fake_server.uri), rollouts)
    assert fake_server.received[-1][1]["Authorization"] == "Bearer secret-token"
    assert failure.message.endswith("the bearer of this token is not let in; correct MLFLOW_TRACKING_TOKEN.")


def test_a_deleted_experiment_is_named(uri, project, rollouts, exporter_for):
    """A deleted experiment is REFUSED with the command that restores it."""
    exporter = exporter_for(uri)
    with rollouts.span("first"):
        pass
    deliver(exporter, rollouts.ended())
    client = MlflowClient(tracking_uri=uri)
    client.delete_experiment(client.get_experiment_by_name(project).experiment_id)

    failure = refused(exporter_for(uri), rollouts)

    assert failure.kind is FailureKind.REFUSED
    assert "mlflow experiments restore" in failure.message


@pytest.mark.parametrize("arguments", [{"experiment_id": "987654"}, {"run_id": "0" * 32}])
def test_what_does_not_exist_is_refused(uri, rollouts, exporter_for, arguments):
    """An experiment id or a run that MLflow does not know is REFUSED instead of losing the link."""
    failure = refused(exporter_for(uri, **arguments), rollouts)

    assert failure.kind is FailureKind.REFUSED
    assert next(iter(arguments.values())) in failure.message


def test_racing_creators_end_up_in_one_experiment(server_uri, project, exporter_for):
    """Eight exporters that meet a new project at once all deliver into the same experiment."""
    start = threading.Barrier(8)
    results = []

    def one() -> None:
        rollouts = Rollouts(project)
        with rollouts.span("Agent.run", "AGENT"):
            pass
        exporter = exporter_for(server_uri)
        start.wait()
        results.append((exporter.export(rollouts.ended()), exporter.last_failure))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [(SpanExportResult.SUCCESS, None)] * 8
    assert len(stored(server_uri, project)) == 8


def test_a_name_that_is_no_unicode_text_costs_nothing_else(sqlite_uri, project, rollouts, exporter_for):
    """What no UTF-8 can hold is a question mark; protobuf would refuse the whole batch for it."""
    with rollouts.span("half a surrogate \ud800"), rollouts.span("whole"):
        pass
    exporter = exporter_for(sqlite_uri)

    assert exporter.export(rollouts.ended()) is SpanExportResult.SUCCESS
    [trace] = stored(sqlite_uri, project)
    assert {span.name for span in trace.data.spans} == {"half a surrogate ?", "whole"}


def test_an_unreadable_database_is_refused(tmp_path, rollouts, exporter_for):
    """A file that is no database is a set-up error with the file named."""
    (tmp_path / "mlflow.db").write_text("this is not a database, but long enough to be read as one" * 20)

    failure = refused(exporter_for(f"sqlite:///{tmp_path}/mlflow.db"), rollouts)

    assert failure.kind is FailureKind.REFUSED
    assert "mlflow.db" in failure.message


def test_a_database_where_no_file_can_be_made_is_refused_at_once(rollouts, exporter_for):
    """MLflow itself would try for two minutes; the message names what to check."""
    failure = refused(exporter_for("sqlite:////proc/mlflow.db"), rollouts)

    assert failure.kind is FailureKind.REFUSED
    assert "sqlite:////proc/mlflow.db cannot be made there" in failure.message
    assert "MLFLOW_TRACKING_URI" in failure.message


def test_the_server_path_does_not_import_mlflow(fake_server):
    """Writing to a server needs neither mlflow nor SQLAlchemy in the process."""
    program = (
        "import sys; from otel_rollout_mlflow import MlflowSpanExporter; "
        f"exporter = MlflowSpanExporter(tracking_uri={fake_server.uri!r}); exporter.export([]); "
        "print(exporter.last_failure, 'mlflow' in sys.modules, 'sqlalchemy' in sys.modules)"
    )

    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert output.stdout.split() == ["None", "False", "False"]
