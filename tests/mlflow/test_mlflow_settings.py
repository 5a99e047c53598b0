"""Malformed settings are refused at once, naming their source and the remedy."""

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
def test_unusable_uri_is_refused_naming_its_source(monkeypatch, uri, said):
    """The message names the variable or argument, and what is wrong with the address."""
    with pytest.raises(ValueError, match="tracking_uri=") as from_argument:
        MlflowSpanExporter(tracking_uri=uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ValueError, match="MLFLOW_TRACKING_URI") as from_environment:
        MlflowSpanExporter()

    assert said in str(from_argument.value)
    assert said in str(from_environment.value)


def test_missing_uri_is_refused():
    """Nothing is written to an address that nobody chose."""
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
def test_malformed_argument_is_named(arguments, said):
    """Each malformed argument is refused by its name."""
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
def test_malformed_variable_is_named(monkeypatch, variable, value):
    """Each malformed environment variable is refused by its name."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=variable):
        MlflowSpanExporter(tracking_uri="http://127.0.0.1:5000")


def test_database_without_the_mlflow_package_is_refused(monkeypatch, database):
    """The message names the extra to install."""
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"otel-rollout\[mlflow-local\]"):
        MlflowSpanExporter(tracking_uri=database)


def test_database_with_an_old_mlflow_package_is_refused(monkeypatch, database):
    """The message names both versions."""
    monkeypatch.setattr(settings, "version", lambda name: "3.13.1")
    with pytest.raises(ValueError, match=r"3\.14.*3\.13\.1"):
        MlflowSpanExporter(tracking_uri=database)


def test_environment_alone_is_enough(monkeypatch):
    """The tracker's own variables configure the exporter.

    Empty variables count as not set.
    """
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


def test_unreadable_credentials_file_is_named_without_its_content(monkeypatch, tmp_path):
    """The line at fault may hold the password."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow" / "credentials").write_text("hunter2")

    with pytest.raises(ValueError, match=r"\.mlflow/credentials cannot be read") as caught:
        MlflowSpanExporter(tracking_uri="http://127.0.0.1:5000")
    assert "hunter2" not in str(caught.value)


def test_entry_point_finds_the_exporter():
    """OTEL_TRACES_EXPORTER finds the exporter by its name."""
    [found] = entry_points(group="opentelemetry_traces_exporter", name="mlflow")
    assert found.load() is MlflowSpanExporter
