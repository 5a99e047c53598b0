"""HTTP headers: the span for every host, the identity for allowed hosts."""

import dataclasses

import pytest
from opentelemetry import trace

from otel_rollout import rollout_trace_attr
from otel_rollout.http import extract_headers, inject_headers
from otel_rollout.record.propagation.carrier import IDENTITY_KEY
from otel_rollout.record.recording.identity import identity_in
from otel_rollout.record.runs import membership
from otel_rollout.record.runs.state import state


def allow(monkeypatch, hosts):
    """Configure the hosts that may receive the identity."""
    configured = dataclasses.replace(membership.decide(), identity_hosts=hosts)
    monkeypatch.setattr(state, "settings", configured)


def sent_to(url: str) -> dict[str, str]:
    """Return the headers of a request that is made inside a trajectory."""
    headers = {"Authorization": "Bearer x"}
    with rollout_trace_attr(step=3):
        inject_headers(headers, url)
    return headers


def test_host_that_is_not_allowed_gets_the_span_only(tracing):
    """Without a list of hosts the identity is not sent, and other headers stay."""
    headers = sent_to("http://vllm:8000/v1/chat/completions")
    assert set(headers) == {"Authorization", "traceparent"}


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://Tools.internal:80/x", True),
        ("https://a.svc.cluster.local", True),
        ("https://svc.cluster.local.evil.com", False),
        ("http://tools.internal@evil.com/", False),
        ("http://[::1", False),
    ],
)
def test_identity_is_sent_to_allowed_hosts(url, allowed, tracing, monkeypatch):
    """Patterns match whole host names, with wildcards, whatever their case."""
    allow(monkeypatch, "tools.internal, *.svc.cluster.local")
    assert (IDENTITY_KEY in sent_to(url)) is allowed


def test_extraction_ignores_the_case_of_header_names(tracing, monkeypatch):
    """Servers that capitalise header names are understood."""
    allow(monkeypatch, "*")
    context = extract_headers({name.title(): value for name, value in sent_to("http://host/").items()})
    assert trace.get_current_span(context).get_span_context().is_remote
    assert identity_in(context).attributes["rollout.step"] == 3


def test_request_outside_a_trajectory_gets_no_headers():
    """The headers of such a request stay unchanged."""
    headers: dict[str, str] = {}
    inject_headers(headers, "http://host/")
    assert headers == {}


@pytest.mark.internal_errors
def test_headers_that_are_no_mapping_cause_no_exception(tracing):
    """Injection changes nothing, and extraction returns an empty context."""
    with rollout_trace_attr():
        inject_headers(None, "http://host/")  # type: ignore[arg-type]
    assert extract_headers(None) == {}  # type: ignore[arg-type]
