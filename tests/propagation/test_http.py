"""Context in HTTP headers: the span to everybody, the identity to whom it is meant for."""

import dataclasses

import pytest
from opentelemetry import trace

from otel_rollout import rollout_trace_attr
from otel_rollout._state import process
from otel_rollout.http import extract_headers, inject_headers
from otel_rollout.propagation.carrier import IDENTITY_KEY
from otel_rollout.recording.identity import identity_in
from otel_rollout.runs import membership


def allow(monkeypatch, hosts):
    """Configure the hosts that may have the identity."""
    configured = dataclasses.replace(membership.decide(), identity_hosts=hosts)
    monkeypatch.setattr(process, "settings", configured)


def sent_to(url: str) -> dict[str, str]:
    """Headers of a request made inside a trajectory."""
    headers = {"Authorization": "Bearer x"}
    with rollout_trace_attr(step=3):
        inject_headers(headers, url)
    return headers


def test_other_peoples_servers_get_the_span_only(tracing):
    """Without an allow-list no identity leaves, and other headers stay."""
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
def test_identity_goes_to_allowed_hosts(url, allowed, tracing, monkeypatch):
    """Hosts are compared as a whole, with wildcards, without regard to case."""
    allow(monkeypatch, "tools.internal, *.svc.cluster.local")
    assert (IDENTITY_KEY in sent_to(url)) is allowed


def test_headers_are_read_whatever_their_case(tracing, monkeypatch):
    """Servers that capitalise header names are understood."""
    allow(monkeypatch, "*")
    context = extract_headers({name.title(): value for name, value in sent_to("http://host/").items()})
    assert trace.get_current_span(context).get_span_context().is_remote
    assert identity_in(context).attributes["rollout.step"] == 3


def test_outside_a_trajectory_nothing_is_added():
    """Requests made elsewhere look as they always did."""
    headers: dict[str, str] = {}
    inject_headers(headers, "http://host/")
    assert headers == {}


@pytest.mark.internal_errors
def test_headers_that_are_none_do_no_harm(tracing):
    """What is no mapping is left alone, and read as an empty context."""
    with rollout_trace_attr():
        inject_headers(None, "http://host/")  # type: ignore[arg-type]
    assert extract_headers(None) == {}  # type: ignore[arg-type]
