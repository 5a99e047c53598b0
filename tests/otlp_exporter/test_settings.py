"""Settings of the OTLP exporter: OpenTelemetry's variables, checked at once."""

from __future__ import annotations

import pytest

from otel_rollout.exporting import entry_points as registry
from otel_rollout.settings import SettingsError
from otel_rollout_otlp import OtlpSpanExporter, settings
from otel_rollout_otlp.settings import OtlpSettings, Protocol

NOTHING = dict.fromkeys(
    (
        "endpoint", "protocol", "headers", "timeout", "compression",
        "certificate", "client_key", "client_certificate", "insecure",
    )
)  # fmt: skip


def resolved(**arguments: object) -> OtlpSettings:
    return settings.resolve(**{**NOTHING, **arguments})


def test_defaults_are_those_of_the_specification():
    """OTLP over HTTP with protobuf to the loopback, ten seconds, uncompressed."""
    found = resolved()
    assert found.url == "http://localhost:4318/v1/traces"
    assert (found.protocol, found.timeout, found.gzip, found.tls) == (
        Protocol.HTTP_PROTOBUF,
        10.0,
        False,
        False,
    )
    assert resolved(protocol="grpc").url == "localhost:4317"


@pytest.mark.parametrize(
    ("variable", "value", "protocol", "url", "tls"),
    [
        ("ENDPOINT", "http://c:4318", "http/json", "http://c:4318/v1/traces", False),
        ("ENDPOINT", "https://c/otlp/", "http/protobuf", "https://c/otlp/v1/traces", True),
        ("TRACES_ENDPOINT", "https://c/custom?x=1", "http/protobuf", "https://c/custom?x=1", True),
        ("TRACES_ENDPOINT", "http://c:9", "http/json", "http://c:9/", False),
        ("ENDPOINT", "http://[::1]:4318", "http/json", "http://[::1]:4318/v1/traces", False),
        ("ENDPOINT", "http://c:4317", "grpc", "c:4317", False),
        ("ENDPOINT", "https://c", "grpc", "c:4317", True),
        ("ENDPOINT", "c:999", "grpc", "c:999", True),
    ],
)
def test_endpoint_is_read_as_the_specification_says(monkeypatch, variable, value, protocol, url, tls):
    """The general endpoint gets /v1/traces, and that for traces is complete.

    gRPC takes host and port.
    """
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{variable}", value)
    found = resolved(protocol=protocol)
    assert (found.url, found.tls) == (url, tls)


def test_argument_wins_over_traces_variable_and_that_over_the_general_one(monkeypatch):
    """Headers of both variables are sent."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    assert resolved().timeout == 1
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2")
    assert resolved().timeout == 2
    assert resolved(timeout=3).timeout == 3
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "a=1, B=two%20words")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=3")
    assert resolved().headers == {"a": "3", "b": "two words"}
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", "true")
    assert not resolved(endpoint="c:1", protocol="grpc").tls


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PROTOCOL", "http/thrift", "expected one of grpc, http/protobuf, http/json"),
        ("ENDPOINT", "collector:4318", "expected an address such as http://collector:4318"),
        ("ENDPOINT", "http://c:port", "no usable address"),
        ("ENDPOINT", "http://user:secret@c", "put credentials into OTEL_EXPORTER_OTLP_HEADERS"),
        ("TIMEOUT", "soon", "positive number of seconds"),
        ("TIMEOUT", "0", "positive number of seconds"),
        ("COMPRESSION", "zstd", "expected gzip or none"),
        ("HEADERS", "a=1,secret", "entry 2 is not name=value"),
        ("CERTIFICATE", "/no/such.pem", "not a readable file"),
    ],
)
def test_malformed_value_is_named_with_its_variable_and_the_remedy(monkeypatch, variable, value, words):
    """The message shows no credential."""
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{variable}", value)
    with pytest.raises(ValueError, match=words) as raised:
        OtlpSpanExporter()
    assert f"OTEL_EXPORTER_OTLP_{variable}" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_client_key_without_certificate_is_refused(tmp_path):
    """A connection without either would fail later."""
    key = tmp_path / "key.pem"
    key.touch()
    with pytest.raises(ValueError, match="go together"):
        resolved(client_key=str(key))


def test_name_otlp_is_ours_only_in_our_entry_point_group():
    """Other programs go on finding OpenTelemetry's exporter."""
    from importlib.metadata import entry_points

    assert isinstance(registry.load("otlp", {}), OtlpSpanExporter)
    theirs = entry_points(group="opentelemetry_traces_exporter")
    assert not [point for point in theirs if point.value.startswith("otel_rollout_otlp")]
    with pytest.raises(SettingsError, match="http/thrift"):
        registry.load("otlp", {"protocol": "http/thrift"})
