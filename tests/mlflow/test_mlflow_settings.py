"""Bad input is refused at once, saying where it came from and what to do."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from otel_rollout_mlflow import MlflowSpanExporter, settings


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("databricks", "'databricks', Databricks"),
        ("databricks://profile", "Databricks"),
        ("arn:aws:sagemaker:us-east-1:1:mlflow-tracking-server/x", "SageMaker"),
        ("azureml://westus.api.azureml.ms/mlflow/v1.0", "Azure"),
        ("file:///tmp/mlruns", "file store"),
        ("./mlruns", "file store"),
        ("ftp://host/path", "'ftp'"),
        ("postgres://host/db", "postgresql://"),
        ("http://", "names no host"),
        ("http://host:port", "'http://host:port', which is not a valid URI"),
        ("http://alice:a/b@host", "'http://***@host', which is not a valid URI"),
        ("redis://alice:pass@host", "'redis://***@host', whose scheme 'redis'"),
        ("127.0.0.1:5000", "lacks http:// or https://"),
        ("localhost:5000", "lacks http:// or https://"),
        ("[::1]:5000/mlflow", "lacks http:// or https://"),
        ("sqlite://", "in-memory"),
        ("sqlite:///:memory:", "in-memory"),
    ],
)
def test_an_unusable_uri_is_explained(monkeypatch, uri, said):
    """The message names the variable or argument the address came from, and what is wrong with it."""
    with pytest.raises(ValueError, match="tracking_uri=") as from_argument:
        MlflowSpanExporter(tracking_uri=uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ValueError, match="MLFLOW_TRACKING_URI") as from_environment:
        MlflowSpanExporter()

    assert said in str(from_argument.value)
    assert said in str(from_environment.value)


def test_no_uri_at_all_is_refused_rather_than_guessed():
    """Without an address nothing is written to a place nobody chose."""
    with pytest.raises(ValueError, match="set MLFLOW_TRACKING_URI"):
        MlflowSpanExporter()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"experiment_id": "seven"}, "experiment_id= is 'seven'"),
        ({"experiment_id": "7", "experiment_name": "x"}, "not both"),
        ({"timeout": 0}, "timeout= is '0'"),
        ({"max_request_bytes": 0}, "max_request_bytes="),
        ({"server_cert_path": "/no/such/bundle"}, "does not exist"),
        ({"server_cert_path": "/etc", "insecure_tls": True}, "contradicts"),
    ],
)
def test_a_bad_argument_is_named(arguments, said):
    """Each malformed argument is refused by name."""
    with pytest.raises(ValueError, match=said):
        MlflowSpanExporter(tracking_uri="http://127.0.0.1:5000", **arguments)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MLFLOW_EXPERIMENT_ID", "seven"),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", "soon"),
        ("MLFLOW_TRACKING_INSECURE_TLS", "maybe"),
        ("MLFLOW_TRACKING_CLIENT_CERT_PATH", "/no/such/file"),
        ("MLFLOW_TRACKING_USERNAME", "alice"),
        ("MLFLOW_TRACKING_TOKEN", "two\nlines"),
        ("MLFLOW_TRACKING_AUTH", "arn"),
        ("MLFLOW_TRACKING_AWS_SIGV4", "true"),
    ],
)
def test_a_bad_variable_is_named(monkeypatch, variable, value):
    """Each malformed environment variable is refused by name."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=variable):
        MlflowSpanExporter(tracking_uri="http://127.0.0.1:5000")


def test_a_database_needs_mlflow_here(monkeypatch, database):
    """Without the full mlflow package a database URI is refused with the extra to install."""
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"otel-rollout\[mlflow-local\]"):
        MlflowSpanExporter(tracking_uri=database)


def test_a_database_needs_a_recent_mlflow_here(monkeypatch, database):
    """An mlflow package that is too old is refused with both versions."""
    monkeypatch.setattr(settings, "version", lambda name: "3.13.1")
    with pytest.raises(ValueError, match=r"3\.14.*3\.13\.1"):
        MlflowSpanExporter(tracking_uri=database)


def test_the_environment_alone_is_enough(monkeypatch):
    """With no argument, MLflow's own variables are what counts; empty ones count as not set."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://alice:p%40ss@mlflow.example:5000/base/")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "7")
    monkeypatch.setenv("MLFLOW_RUN_ID", "")
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")

    found = MlflowSpanExporter()._settings

    assert found.uri == "https://mlflow.example:5000/base"
    assert (found.username, found.password) == ("alice", "p@ss")
    assert (found.experiment_id, found.experiment_name, found.run_id) == ("7", None, None)
    assert found.verify_tls is False
    assert "p@ss" not in repr(found)


def test_a_broken_file_of_credentials_is_named_without_what_is_in_it(monkeypatch, tmp_path):
    """A ~/.mlflow/credentials that cannot be read is an error by its path, not by the line at fault."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow" / "credentials").write_text("hunter2")

    with pytest.raises(ValueError, match=r"\.mlflow/credentials cannot be read") as caught:
        MlflowSpanExporter(tracking_uri="http://127.0.0.1:5000")
    assert "hunter2" not in str(caught.value)


def test_the_entry_point_finds_the_exporter():
    """OTEL_TRACES_EXPORTER=mlflow means this exporter."""
    [found] = entry_points(group="opentelemetry_traces_exporter", name="mlflow")
    assert found.load() is MlflowSpanExporter
