"""A server with authentication and TLS: who gets in, and what other users read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from mlflow_support import ADMIN, IN_A_FILE, PASSWORD, stored
from opentelemetry.sdk.trace.export import SpanExportResult
from urllib3.exceptions import InsecureRequestWarning

from otel_rollout.exporting.api import ExportFailure, FailureKind
from tests.sdk_spans import Rollouts, deliver


def refusal(exporter, rollouts: Rollouts) -> ExportFailure:
    """Export a span, insist on REFUSED and return it."""
    with rollouts.span("Agent.run", "AGENT"):
        pass
    assert exporter.export(rollouts.ended()) is SpanExportResult.FAILURE
    assert exporter.last_failure.kind is FailureKind.REFUSED, exporter.last_failure
    assert exporter.check() == exporter.last_failure or exporter.check().kind is FailureKind.REFUSED
    return exporter.last_failure


def test_right_credentials_deliver(secured, as_admin, project, rollouts, exporter_for, monkeypatch):
    """User, password and CA win over whatever else `requests` is told."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", secured.other_ca)
    with rollouts.span("Agent.run", "AGENT", rollout__score__reward=0.5):
        pass

    deliver(exporter_for(secured.uri), rollouts.ended())

    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    assert len(stored(secured.uri, project, "feedback.reward > 0.2")) == 1


def test_credentials_of_mlflows_file_deliver(
    secured, as_admin, project, rollouts, exporter_for, monkeypatch, tmp_path
):
    """A user who signed in by ~/.mlflow/credentials needs no variables."""
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow" / "credentials").write_text(
        f"[mlflow]\nmlflow_tracking_username = {ADMIN}\nmlflow_tracking_password = {IN_A_FILE}\n"
    )
    with rollouts.span("Agent.run", "AGENT"):
        pass

    deliver(exporter_for(secured.uri), rollouts.ended())

    assert len(stored(secured.uri, project)) == 1


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."),
        (
            {"MLFLOW_TRACKING_USERNAME": ADMIN, "MLFLOW_TRACKING_PASSWORD": "wr0ng"},
            "the user 'admin' is not let in; correct MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.",
        ),
    ],
)
def test_missing_or_wrong_credentials_are_refused_naming_the_variables(
    secured, rollouts, exporter_for, monkeypatch, variables, said
):
    """The message does not show their values."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    failure = refusal(exporter_for(secured.uri, server_cert_path=secured.ca), rollouts)

    assert failure.message.endswith(said)
    assert "wr0ng" not in failure.message


def test_user_without_permission_is_refused_as_such(secured, as_admin, rollouts, exporter_for):
    """A user who may only read is told to have the permission granted."""
    with rollouts.span("Agent.run", "AGENT"):
        pass
    deliver(exporter_for(secured.uri), rollouts.ended())
    requests.post(
        f"{secured.uri}/api/2.0/mlflow/users/create",
        json={"username": "reader", "password": "the reader's password"},
        auth=(ADMIN.encode(), PASSWORD.encode()),
        verify=secured.ca,
        timeout=30,
    ).raise_for_status()

    exporter = exporter_for(secured.uri, username="reader", password="the reader's password")
    with rollouts.span("Agent.run", "AGENT"):
        pass
    assert exporter.export(rollouts.ended()) is SpanExportResult.FAILURE

    assert exporter.last_failure.kind is FailureKind.REFUSED
    assert "the user 'reader' may not do that; have the permission granted" in exporter.last_failure.message


def test_unknown_authority_is_refused_naming_the_variable(secured, rollouts, exporter_for):
    """Nothing, not even a password, is sent to a server without trusted certificate."""
    failure = refusal(exporter_for(secured.uri, username=ADMIN, password=PASSWORD), rollouts)

    assert secured.uri in failure.message
    assert failure.message.endswith(
        "set MLFLOW_TRACKING_SERVER_CERT_PATH to the file of the CA that signed it."
    )


def test_bundle_without_the_authority_is_refused_naming_the_file(secured, rollouts, exporter_for):
    """The message says that the file lacks the CA."""
    failure = refusal(exporter_for(secured.uri, server_cert_path=secured.other_ca), rollouts)

    assert f"MLFLOW_TRACKING_SERVER_CERT_PATH, {secured.other_ca}, lacks the CA" in failure.message


def test_certificate_for_another_name_is_refused(secured, rollouts, exporter_for):
    """The message says to use the name that the certificate was issued for."""
    other_name = secured.uri.replace("localhost", "127.0.0.1")
    failure = refusal(exporter_for(other_name, server_cert_path=secured.ca), rollouts)

    assert "IP address mismatch" in failure.message
    assert "put the name it was issued for into MLFLOW_TRACKING_URI" in failure.message


def test_certificate_check_is_skipped_only_by_the_variable(
    secured, as_admin, project, rollouts, exporter_for, monkeypatch
):
    """MLFLOW_TRACKING_INSECURE_TLS=true delivers without a CA.

    Each connection is warned of.
    """
    monkeypatch.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    with rollouts.span("Agent.run", "AGENT"):
        pass

    with pytest.warns(InsecureRequestWarning, match="localhost"):
        deliver(exporter_for(secured.uri), rollouts.ended())


def test_http_and_https_at_the_wrong_port_are_refused_naming_the_other(
    secured, server_uri, rollouts, exporter_for
):
    """http:// at a TLS port and https:// at a plain port say which one to write."""
    with rollouts.span("Agent.run", "AGENT"):
        pass
    plain = exporter_for(secured.uri.replace("https", "http"))
    assert plain.export(rollouts.ended()) is SpanExportResult.FAILURE
    assert "wants https:// in MLFLOW_TRACKING_URI" in plain.last_failure.message

    failure = refusal(exporter_for(server_uri.replace("http", "https")), rollouts)
    assert "write http:// in MLFLOW_TRACKING_URI" in failure.message


def test_refused_spans_are_delivered_once_the_password_is_right(secured, as_admin, project):
    """A wrong password keeps spans on disk.

    `otel-rollout forward` delivers them later.
    """
    wrong = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "mlflow",
        "OTEL_ROLLOUT_PROJECT": project,
        "MLFLOW_TRACKING_URI": secured.uri,
        "MLFLOW_TRACKING_PASSWORD": "wr0ng",
    }
    right = {**wrong, "MLFLOW_TRACKING_PASSWORD": PASSWORD}

    ran = run(wrong, "-m", "tests.mlflow.programs.scored_trajectory")
    assert "delivered=0" in ran
    assert "pending=2" in ran
    assert "correct MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in ran
    run(right, "-c", "from otel_rollout.cli import app; app()", "forward")

    assert len(stored(secured.uri, project, "feedback.reward > 0.2 AND tags.step = '1'")) == 1


def run(environment: dict[str, str], *arguments: str) -> str:
    """Run a Python process that has to succeed, and return its standard output."""
    ran = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_bundle_that_is_no_certificate_is_refused_at_once(exporter_for, tmp_path: Path):
    """A CA bundle without a CA is named before anything is connected."""
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ValueError, match=r"server_cert_path= names '.*ca\.pem', which holds no CA"):
        exporter_for("https://127.0.0.1:1", server_cert_path=str(tmp_path / "ca.pem"))
