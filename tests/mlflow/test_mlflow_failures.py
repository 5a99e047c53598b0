"""Failures of MLflow that other backends do not have."""

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


def test_old_server_is_refused_with_both_versions(fake_server, rollouts, exporter_for):
    """A server before 3.14 is REFUSED, and accepted once it has been upgraded."""
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


def test_server_that_is_not_mlflow_is_refused(fake_server, rollouts, exporter_for):
    """A web page in place of a version is REFUSED.

    The message names the address's variable.
    """
    exporter = exporter_for(fake_server.uri)
    for answer in ((200, {}, b"<html>hello</html>"), (404, {}, b"<html>not here</html>")):
        fake_server.answers["/version"] = answer
        failure = refused(exporter, rollouts)
        assert failure.kind is FailureKind.REFUSED
        assert "MLFLOW_TRACKING_URI" in failure.message


def test_silent_server_is_unavailable(server_uri, rollouts, exporter_for):
    """A server that does not answer in time is UNAVAILABLE."""
    failure = refused(exporter_for(server_uri, timeout=0.0001), rollouts)

    assert failure.kind is FailureKind.UNAVAILABLE


def test_credentials_are_sent_and_in_no_message(fake_server, rollouts, exporter_for, monkeypatch):
    """User name and password of the URI become basic authentication.

    A token becomes bearer authentication.
    """
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


def test_deleted_experiment_is_refused_with_the_command_that_restores_it(
    uri, project, rollouts, exporter_for
):
    """Spans of a deleted experiment would be seen by nobody."""
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
def test_unknown_experiment_id_or_run_is_refused(uri, rollouts, exporter_for, arguments):
    """An id that MLflow does not know is REFUSED, so that no link is lost."""
    failure = refused(exporter_for(uri, **arguments), rollouts)

    assert failure.kind is FailureKind.REFUSED
    assert next(iter(arguments.values())) in failure.message


def test_exporters_that_create_an_experiment_at_once_share_it(server_uri, project, exporter_for):
    """Eight threads that meet a new project deliver into one experiment."""
    start = threading.Barrier(8)
    results = []

    def one() -> None:
        rollouts = Rollouts(project)
        with rollouts.span("Agent.run", "AGENT"):
            pass
        exporter = exporter_for(server_uri)
        start.wait()
        results.append((exporter.export(rollouts.ended()), exporter.last_failure))

    threads = [threading.Thread(target=one, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [(SpanExportResult.SUCCESS, None)] * 8
    assert len(stored(server_uri, project)) == 8


def test_name_with_half_a_surrogate_is_stored_with_a_question_mark(
    database_uri, project, rollouts, exporter_for
):
    """Protobuf would refuse the whole batch for it."""
    with rollouts.span("half a surrogate \ud800"), rollouts.span("whole"):
        pass
    exporter = exporter_for(database_uri)

    assert exporter.export(rollouts.ended()) is SpanExportResult.SUCCESS
    [trace] = stored(database_uri, project)
    assert {span.name for span in trace.data.spans} == {"half a surrogate ?", "whole"}


def test_file_that_is_no_database_is_refused(tmp_path, rollouts, exporter_for):
    """The message names the file."""
    (tmp_path / "mlflow.db").write_text("this is not a database, but long enough to be read as one" * 20)

    failure = refused(exporter_for(f"sqlite:///{tmp_path}/mlflow.db"), rollouts)

    assert failure.kind is FailureKind.REFUSED
    assert "mlflow.db" in failure.message


def test_database_in_a_read_only_directory_is_refused_at_once(rollouts, exporter_for):
    """MLflow itself would try for two minutes; the message names the variable."""
    failure = refused(exporter_for("sqlite:////proc/mlflow.db"), rollouts)

    assert failure.kind is FailureKind.REFUSED
    assert "sqlite:////proc/mlflow.db cannot be used" in failure.message
    assert "MLFLOW_TRACKING_URI" in failure.message


def test_export_to_a_server_imports_no_mlflow(fake_server):
    """Neither mlflow nor SQLAlchemy is in the process."""
    program = (
        "import sys; from otel_rollout_mlflow import MlflowSpanExporter; "
        f"exporter = MlflowSpanExporter(tracking_uri={fake_server.uri!r}); exporter.export([]); "
        "print(exporter.last_failure, 'mlflow' in sys.modules, 'sqlalchemy' in sys.modules)"
    )

    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert output.stdout.split() == ["None", "False", "False"]
