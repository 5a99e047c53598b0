"""HTTP status → kind of failure, for statuses that no exporter's suite sends."""

from __future__ import annotations

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.client import BadStatusLine

import pytest
import requests
from urllib3.exceptions import MaxRetryError, ProtocolError
from urllib3.exceptions import SSLError as WrappedError

from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout.exporting.http import HttpServer, HttpSession, kind_of_status, retry_after
from tests.fake_server import serving

SERVER = HttpServer("the server", "ADDRESS", "TIMEOUT", "CA", "CERTIFICATE")


def test_every_status_has_a_kind():
    """Success is no failure, and redirects and unknown 4xx need a person.

    5xx are outages.
    """
    for status in range(200, 300):
        assert kind_of_status(status) is None
    for status in range(300, 400):
        assert kind_of_status(status) is FailureKind.REFUSED
    for status in range(500, 600):
        expected = FailureKind.REFUSED if status == 501 else FailureKind.UNAVAILABLE
        assert kind_of_status(status) is expected
    found = {kind: [s for s in range(400, 500) if kind_of_status(s) is kind] for kind in FailureKind}
    assert found[FailureKind.REJECTED] == [400, 409, 413, 422]
    assert found[FailureKind.UNAVAILABLE] == [408, 425, 429, 499]


@pytest.mark.parametrize(
    ("cause", "kind", "words"),
    [
        (ssl.SSLEOFError(8, "UNEXPECTED_EOF_WHILE_READING"), FailureKind.UNAVAILABLE, "cut off"),
        (ssl.SSLZeroReturnError(6, "closed"), FailureKind.UNAVAILABLE, "cut off"),
        (ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]"), FailureKind.REFUSED, "CERTIFICATE"),
    ],
)
def test_tls_failure_is_an_outage_only_if_it_was_cut_off(monkeypatch, cause, kind, words):
    """A connection that ends early is an outage; a refused handshake needs a person."""

    def fail(*_: object, **__: object) -> None:
        raise requests.exceptions.SSLError(MaxRetryError(None, "/", WrappedError(cause)))

    monkeypatch.setattr(requests.Session, "request", fail)
    with pytest.raises(UndeliveredError, match=words) as raised:
        HttpSession(SERVER, 1).send("GET", "https://127.0.0.1/")
    assert raised.value.failure.kind is kind


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (BadStatusLine("\x00\x00\x06"), "it does not answer in HTTP/1.1"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
    ],
)
@pytest.mark.parametrize("advice", ["", " (try another)"])
def test_port_of_another_protocol_is_an_outage_with_advice(monkeypatch, cause, said, advice):
    """A target that is known to have a port of another protocol says what that port needs."""

    def fail(*_: object, **__: object) -> None:
        raise requests.exceptions.ConnectionError(ProtocolError("Connection aborted.", cause))

    monkeypatch.setattr(requests.Session, "request", fail)
    server = replace(SERVER, other_protocol=advice.strip())
    with pytest.raises(UndeliveredError) as raised:
        HttpSession(server, 1).send("GET", "http://127.0.0.1/")
    assert str(raised.value) == f"No connection to the server: {said}{advice}."
    assert raised.value.failure.kind is FailureKind.UNAVAILABLE


def test_unreadable_certificate_file_is_refused():
    """`requests` raises a plain OSError for an unreadable certificate file."""
    session = HttpSession(SERVER, 1, verify="/no/such/bundle")
    with pytest.raises(UndeliveredError, match="check CA and CERTIFICATE") as raised:
        session.send("GET", "https://127.0.0.1:1/")
    assert raised.value.failure.kind is FailureKind.REFUSED


@pytest.mark.parametrize(
    ("status", "may_have_arrived"),
    [(400, False), (408, True), (425, False), (429, False), (499, True), (503, True)],
)
def test_answer_tells_whether_the_request_may_have_been_stored(status, may_have_arrived):
    """After a timeout or an error in the server the request may be stored.

    After 429 it is not.
    """
    with serving({"/": (status, {}, b"")}) as fake:
        session = HttpSession(SERVER, 5)
        response = session.send("POST", fake.uri, data=b"x")
        with pytest.raises(UndeliveredError) as raised:
            session.check(response, "asking", of_batch=True)
        session.close()
    assert raised.value.may_have_arrived is may_have_arrived
    assert raised.value.status == status


def test_redirect_names_its_target_without_the_query():
    """A query may hold a token."""
    with serving({"/": (302, {"Location": "http://login.example/in?token=secret"}, b"")}) as fake:
        session = HttpSession(SERVER, 5)
        with pytest.raises(UndeliveredError, match=r"pointing to http://login\.example/in: check ADDRESS"):
            session.check(session.send("GET", fake.uri), "asking")
        session.close()


def test_request_is_named_without_its_query():
    """The message of a missing answer holds the path of the address, and no parameter."""
    session = HttpSession(SERVER, 0.5)
    with pytest.raises(UndeliveredError) as raised:
        session.send("GET", "http://127.0.0.1:1/path?key=secret")
    assert "secret" not in raised.value.failure.message


def test_retry_after_is_a_number_of_seconds_or_a_date():
    """A date that has passed is no wait, and text that is neither says nothing."""
    later = datetime.now(UTC) + timedelta(hours=1)
    for text in (format_datetime(later, usegmt=True), format_datetime(later.replace(tzinfo=None))):
        assert 3500 < retry_after({"Retry-After": text}) <= 3600
    assert retry_after({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}) == 0
    assert retry_after({"Retry-After": " 17 "}) == 17
    assert retry_after({"Retry-After": "soon"}) is None
    assert retry_after({}) is None
