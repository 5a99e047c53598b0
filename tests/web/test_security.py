"""Only this machine's browser is answered, and no page runs or loads anything."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from urllib.parse import urlencode

import pytest

from otel_rollout.look.web.server import HEADERS, MAX_QUERY_BYTES
from tests.web.rows import HOSTILE
from tests.web.served import Served, hrefs
from tests.web.test_pages import RUN

PAGES = ["/", f"/trajectories?{RUN}", f"/trajectory?{RUN}&name=1/0/0", "/nothing", "/trajectories?run=none"]


@pytest.mark.parametrize("page", PAGES)
def test_every_answer_has_the_headers(served: Served, page: str) -> None:
    """A page, and a page about a problem, forbid scripts, frames and storage."""
    answer = served.get(page)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert "server" not in answer.headers
    assert not re.search(r"<script|javascript:|\son\w+=", answer.body)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}"],
)
def test_name_of_another_site_is_refused(served: Served, host: str) -> None:
    """A site whose name resolves to this machine (DNS rebinding) reads no page, and no header is missing."""
    answer = served.get("/", host=host.format(port=served.port))
    assert answer.status == 403
    assert answer.body == f"This server answers at {served.address} only.\n"
    assert HEADERS.items() <= answer.headers.items()


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_own_names_are_answered(served: Served, host: str) -> None:
    """The loopback has three names."""
    assert served.get("/", host=host.format(port=served.port)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(served: Served, method: str) -> None:
    """Nothing can be changed."""
    assert served.get("/", method, body=b"x").status == 405


def test_head_has_no_body(served: Served) -> None:
    """HEAD is GET without the page."""
    answer = served.get("/", "HEAD")
    assert (answer.status, answer.body) == (200, "")


def test_server_listens_on_the_loopback_only(served: Served) -> None:
    """Another address of this machine has no server at the port."""
    with socket.socket() as other:
        other.bind(("127.0.0.2", served.port))  # taken if the server listened at every address


@pytest.mark.parametrize(
    "parameters",
    [
        {"reward": "1 OR 1=1"},
        {"reward": "0); DROP TABLE trajectories; --"},
        {"sort": "reward; SELECT 1"},
        {"kind": HOSTILE},
        {"step": "9" * 99},
        {"seconds": "1e999"},
        {"turns": ",".join("1" * 1500)},
        {"page": "9" * 30},
        {"run": HOSTILE},
        {"experiment": "' OR ''='"},
    ],
)
def test_field_is_never_sql(served: Served, parameters: dict[str, str]) -> None:
    """A field that cannot be read is a sentence on the page; nothing of it is run."""
    answer = served.get(f"/trajectories?{urlencode(parameters)}")
    assert answer.status in (200, 404)
    assert "<script>" not in answer.body
    assert "Traceback" not in answer.body
    assert served.get(f"/trajectories?{RUN}").text.count(" 1/0/") == 4


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "%00", "1/0/0\x00", HOSTILE, "'", "a" * 4000, "-/-/-", "/"]
)
def test_hostile_name_is_not_found(served: Served, name: str) -> None:
    """A name of nothing is a sentence, whatever characters it has."""
    for page, parameter in (("/trajectory", "name"), ("/trajectory", "run"), ("/compare", "left")):
        answer = served.get(f"{page}?{urlencode({parameter: name})}")
        assert answer.status == 404
        assert "<script>" not in answer.body


def test_huge_address_is_refused(served: Served) -> None:
    """An address beyond the limit is refused; at a longer one the connection ends before it is read."""
    assert served.get(f"/?{'a' * MAX_QUERY_BYTES}").status == 414
    with suppress(ConnectionError):
        assert served.get(f"/?{'a' * 200_000}").status == 400
    assert served.get("/").status == 200


def test_broken_requests_leave_the_server_working(served: Served) -> None:
    """A browser that leaves, or that is no browser, has no effect on others."""
    for sent in (b"", b"\x16\x03\x01\x02", b"GET / HTTP/1.1\r\nHost:", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(sent)
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        asked = f"GET /trajectories?{RUN} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n"
        connection.sendall(asked.encode())
    assert served.get("/").status == 200
    assert "Traceback" not in served.output


def test_hostile_names_are_shown_and_linked(served: Served) -> None:
    """Names with markup, control characters and dots are text, and their links lead to their pages."""
    runs = served.get("/")
    address = next(href for href in hrefs(runs) if "script" in href)
    listed = served.get(address.replace("/run?", "/trajectories?"))
    assert "␛[2J<script>alert(1)</script>" in listed.text
    assert "<script>" not in listed.body
    found = hrefs(listed, "/trajectory?")[0]
    shown = served.get(found)
    assert shown.status == 200
    assert "<script>" not in shown.body
    assert "../a/b ␛[2J<script>alert(1)</script>" in shown.text
