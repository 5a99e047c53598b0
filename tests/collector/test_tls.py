"""TLS and a token between training, agent and gateway."""

from __future__ import annotations

import pytest

from otel_rollout.exporting.api import FailureKind
from otel_rollout_otlp import OtlpSpanExporter
from tests.collector.support import TOKEN, Collector, run_python
from tests.collector.test_delivery import TRAJECTORIES
from tests.waiting import wait_for


@pytest.fixture
def gateway(collector, certificate) -> Collector:
    """A gateway that wants TLS and the token."""
    return collector("gateway.yaml", "gateway-tls.yaml", "to-file.yaml", **certificate)


def test_an_agent_delivers_over_tls_with_a_token(collector, environment, certificate, gateway):
    """agent-tls.yaml and gateway-tls.yaml fit together."""
    agent = collector(
        *("agent.yaml", "agent-tls.yaml"),
        GATEWAY_ENDPOINT=gateway.endpoint.replace("http:", "https:"),
        GATEWAY_CA=certificate["GATEWAY_CERTIFICATE"],
        GATEWAY_TOKEN_FILE=certificate["GATEWAY_TOKEN_FILE"],
    )
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = agent.endpoint
    run_python(TRAJECTORIES, environment)
    wait_for(lambda: len(gateway.span_ids()) == 200, what="every span")


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json", "grpc"])
def test_the_exporter_speaks_tls_and_says_what_is_missing(certificate, gateway, protocol):
    """With CA and token it gets through.

    Without either it is refused, and the message says what to set.
    """
    port = gateway.grpc if protocol == "grpc" else gateway.http
    endpoint = f"https://127.0.0.1:{port}" + ("" if protocol == "grpc" else "/v1/traces")
    ca = certificate["GATEWAY_CERTIFICATE"]

    def asked(**arguments) -> tuple[FailureKind, str] | None:
        exporter = OtlpSpanExporter(endpoint=endpoint, protocol=protocol, **arguments)
        failure = exporter.check()
        exporter.shutdown()
        return failure and (failure.kind, failure.message)

    token = {"Authorization": f"Bearer {TOKEN}"}
    assert asked(certificate=ca, headers=token) is None
    kind, words = asked(certificate=ca, headers={"Authorization": "Bearer another"})
    assert kind is FailureKind.REFUSED
    assert "OTEL_EXPORTER_OTLP_HEADERS" in words
    kind, words = asked(headers=token)
    assert kind is FailureKind.REFUSED
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in words
    assert TOKEN not in words
