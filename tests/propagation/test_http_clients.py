"""Requests inside a trajectory carry its span to the hosts that may have it."""

import asyncio
import contextlib
import dataclasses
import inspect
import json
import pickle
import socket
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.http import extract_headers, inject_headers
from otel_rollout.record.capture import remote_call
from otel_rollout.record.propagation import carrier, http_clients
from otel_rollout.record.propagation.carrier import IDENTITY_KEY
from otel_rollout.record.propagation.http_clients import is_listed
from otel_rollout.record.recording.identity import identity_in
from otel_rollout.record.runs import membership
from otel_rollout.record.runs.state import state
from tests.fake_server import serving
from tests.propagation.http_clients import CLIENTS, send

METHODS = [
    ("urllib3", "HTTPConnectionPool", "urlopen"),
    ("httpx2", "HTTPTransport", "handle_request"),
    ("httpx2", "AsyncHTTPTransport", "handle_async_request"),
    ("aiohttp", "ClientRequest", "send"),
]
PRIVATE = "http://10.1.2.3"
PUBLIC = "http://inference.example.com"
"""Hosts that the tests reach through a proxy on this machine, without a look-up of their names."""


@pytest.fixture(autouse=True)
def uninstrumented():
    yield
    otel_rollout.uninstrument()


@pytest.fixture
def instrumented(tracing):
    """Record in this process, and continue trajectories in requests."""
    otel_rollout.instrument()


@pytest.fixture
def server():
    with serving() as fake:
        yield fake


def configure(monkeypatch, **settings):
    """Change settings of this process."""
    monkeypatch.setattr(state, "settings", dataclasses.replace(membership.decide(), **settings))


def traceparents(server, part=""):
    """Return the header of each request that the server has received."""
    return [request.headers.get("traceparent") for request in server.requests(part)]


def current_traceparent():
    """Return the header that names the current span."""
    return carrier.inject_span()["traceparent"]


@pytest.mark.parametrize("client", CLIENTS)
def test_request_inside_a_trajectory_carries_the_current_span(client, instrumented, server):
    """The header names the operation; outside a trajectory there is none."""

    @rollout_trace_op
    def call():
        assert send(client, server.uri) == 200
        return current_traceparent()

    with rollout_trace_attr(step=3):
        expected = call()
    send(client, server.uri)
    assert traceparents(server) == [expected, None]
    assert [request.headers.get(IDENTITY_KEY) for request in server.received] == [None, None]


@pytest.mark.parametrize("client", CLIENTS)
def test_request_of_a_trajectory_that_is_sampled_out_says_so(client, instrumented, server):
    """The header has the flags 00, so the server does not start a trace of its own."""
    with rollout_trace_attr(step=3, trace=False):
        send(client, server.uri)
    assert traceparents(server)[0].endswith("-00")


@pytest.mark.parametrize("client", CLIENTS)
def test_public_host_gets_no_header(client, instrumented, server):
    """A proxy on this machine does not make the host behind it private."""
    with rollout_trace_attr(step=3):
        send(client, f"{PUBLIC}/public", proxy=server.uri)
        send(client, f"{PRIVATE}/private", proxy=server.uri)
    assert traceparents(server, "/public") == [None]
    assert None not in traceparents(server, "/private")


@pytest.mark.parametrize("client", ["requests", "urllib3", "httpx2", "aiohttp"])
def test_proxy_that_tunnels_gets_no_header(client, instrumented):
    """The request for a tunnel is for the proxy, whoever is behind it."""
    pytest.importorskip(client)
    received = []

    def refuse(proxy):
        connection, _ = proxy.accept()
        proxy.close()  # a second attempt is refused
        with connection:
            received.append(connection.recv(1 << 16))
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        uri = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        thread = threading.Thread(target=refuse, args=(proxy,), daemon=True)
        thread.start()
        with rollout_trace_attr(step=3), contextlib.suppress(Exception):
            send(client, "https://10.1.2.3/", proxy=uri)
        thread.join(30)
    assert received[0].startswith(b"CONNECT 10.1.2.3:443 ")
    assert b"traceparent" not in received[0]


@pytest.mark.parametrize("client", CLIENTS)
def test_redirect_to_a_public_host_carries_no_header(client, instrumented, server):
    """Neither the span nor the identity goes on to a host that may not have it."""
    server.answers["10.1.2.3/redirect"] = (302, {"Location": f"{PUBLIC}/public"}, b"")
    with rollout_trace_attr(step=3):
        assert send(client, f"{PRIVATE}/redirect", proxy=server.uri) == 200
    assert None not in traceparents(server, "/redirect")
    assert traceparents(server, "/public") == [None]


@pytest.mark.parametrize("client", CLIENTS)
def test_redirect_to_an_allowed_host_carries_the_header(client, instrumented, server):
    """Each request is decided by its own host, whichever came before."""
    server.answers["example.com/redirect"] = (302, {"Location": f"{PRIVATE}/private"}, b"")
    with rollout_trace_attr(step=3):
        assert send(client, f"{PUBLIC}/redirect", proxy=server.uri) == 200
    assert traceparents(server, "/redirect") == [None]
    assert None not in traceparents(server, "/private")


@pytest.mark.parametrize("client", CLIENTS)
def test_header_of_the_application_stays(client, instrumented, server, monkeypatch):
    """A request never has two of a header, whatever the case of its name."""
    own = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    configure(monkeypatch, identity_hosts="private")
    with rollout_trace_attr(step=3):
        send(client, server.uri, headers={"TraceParent": own, "tracestate": "x=1"})
        added: dict[str, str] = {}
        inject_headers(added, server.uri)
        send(client, server.uri, headers=added)
        send(client, server.uri, headers={IDENTITY_KEY: "{}", "tracestate": "x=1"})
    assert len(server.received[2].headers.get_all("traceparent")) == 1
    assert server.received.pop().headers.get_all(IDENTITY_KEY) == ["{}"]
    assert [request.headers.get_all("traceparent") for request in server.received] == [
        [own],
        [added["traceparent"]],
    ]
    assert server.received[0].headers.get_all("tracestate") == ["x=1"]


@pytest.mark.parametrize("client", CLIENTS)
def test_identity_goes_to_hosts_that_may_have_it(client, instrumented, server, monkeypatch):
    """The server reads the trajectory's step, also beside an instrumentor's header."""
    configure(monkeypatch, identity_hosts="private")
    with rollout_trace_attr(step=3):
        send(client, server.uri)
        send(client, server.uri, headers={"traceparent": current_traceparent()})
        send(client, server.uri, headers={"traceparent": f"00-{1:032x}-{1:016x}-01"})
    steps = [
        identity_in(extract_headers(request.headers)).attributes.get("rollout.step")
        for request in server.received
    ]
    assert steps == [3, 3, None], "the third request is of another trace"


def test_identity_alone_does_not_go_to_other_hosts(instrumented, server, monkeypatch):
    """A host that may have the identity must also be allowed to have the span."""
    configure(monkeypatch, identity_hosts="*")
    with rollout_trace_attr(step=3):
        send("urllib3", PUBLIC, proxy=server.uri)
    assert traceparents(server) == [None]
    assert server.received[0].headers.get(IDENTITY_KEY) is None


@pytest.mark.parametrize(
    ("hosts", "allowed"), [("*", True), ("private,*.example.com", True), ("none", False), ("", False)]
)
def test_hosts_are_chosen_by_a_setting(hosts, allowed, instrumented, server, monkeypatch):
    """Public hosts get the header if the user names them."""
    configure(monkeypatch, traceparent_hosts=hosts)
    with rollout_trace_attr(step=3):
        send("urllib3", PUBLIC, proxy=server.uri)
    assert (traceparents(server) != [None]) is allowed


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST", "localhost.", "x.localhost", "127.0.0.1", "127.9.9.9", "0.0.0.0", "::1",
        "[::1]", "::ffff:10.0.0.1", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
        "fd12:3456::1", "vllm", "vllm-0", "sgl_router", "gpu3", "vllm.default.svc.cluster.local",
        "vllm.default.svc.cluster.local.", "ip-10-0-0-1.ec2.internal", "host.docker.internal", "a.home.arpa",
    ],
)  # fmt: skip
def test_host_is_private(host):
    """Its address is private, or public DNS cannot have its name."""
    assert is_listed(host, "private")


@pytest.mark.parametrize(
    "host",
    [
        "api.openai.com", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:4860:4860::8888", "::ffff:8.8.8.8",
        "169.254.169.254", "fe80::1", "134744072", "0x08080808", "010.8.8.8", "127.1", "ai.",
        "10.0.0.1.nip.io", "localhost.example.com", "xlocalhost.com", "vllm.default.svc", "gpu3.lan", "", ".",
    ],
)  # fmt: skip
def test_host_may_be_public(host):
    """A number is an address; a name that public DNS may have must be listed."""
    assert not is_listed(host, "private")


def test_call_from_another_process_counts_as_inside(instrumented, server):
    """A Ray task of a sampled-out trajectory has no identity; its requests say 00."""
    sampled_out, sampled = (
        carrier.extract({"traceparent": f"00-{7:032x}-{8:016x}-{flags}"}) for flags in ("00", "01")
    )
    for context in (remote_call.start(sampled_out), remote_call.start(sampled), sampled_out):
        token = otel_context.attach(context)
        send("urllib3", server.uri)
        otel_context.detach(token)
    assert traceparents(server) == [f"00-{7:032x}-{8:016x}-00", None, None], "the others are no trajectory's"


def test_operation_outside_a_trajectory_is_carried(instrumented, server):
    """Such an operation is a trace of its own."""

    @rollout_trace_op
    def call():
        send("urllib3", server.uri)
        return current_traceparent()

    assert [call()] == traceparents(server)


def test_operation_that_the_sampler_leaves_out_says_so(fresh_process, test_exporters, server, monkeypatch):
    """The flags are 00, as in a trajectory that is sampled out."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "test-file")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    otel_rollout.instrument()
    rollout_trace_op(send)("urllib3", server.uri)
    (sent,) = traceparents(server)
    assert sent.endswith("-00")


def test_unrecorded_span_of_the_application_says_so(instrumented, server):
    """An application's span below a sampled-out trajectory has no identity."""
    with rollout_trace_attr(step=3, trace=False) as trajectory:
        above = trajectory.root.get_span_context()
        span = trace.NonRecordingSpan(trace.SpanContext(above.trace_id, 5, False))
        with trace.use_span(span):
            send("urllib3", server.uri)
    assert traceparents(server) == [f"00-{above.trace_id:032x}-{5:016x}-00"]


@pytest.mark.parametrize("client", ["requests", "httpx2", "httpx2 async", "aiohttp"])
def test_method_that_an_instrumentor_has_wrapped_gets_its_instance(client, tracing, server):
    """Instrumentors wrap with wrapt, whose wrappers need to be bound."""
    wrapt = pytest.importorskip("wrapt")
    instances = []

    def wrapper(wrapped, instance, args, kwargs):
        instances.append(instance)
        return wrapped(*args, **kwargs)

    with contextlib.ExitStack() as unwrapping:
        for module, owner, method in METHODS:
            class_ = getattr(pytest.importorskip(module), owner)
            unwrapping.callback(setattr, class_, method, vars(class_)[method])
            wrapt.wrap_function_wrapper(class_, method, wrapper)
        otel_rollout.instrument()
        with rollout_trace_attr(step=3):
            assert send(client, server.uri) == 200
        otel_rollout.uninstrument()
    assert len(instances) == 1
    assert instances[0] is not None


def test_span_of_the_application_outside_a_trajectory_stays_private(instrumented, server):
    """The application's own traces are none of ours."""
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, False, trace.TraceFlags(1)))
    with trace.use_span(span):
        send("urllib3", server.uri)
    assert traceparents(server) == [None]


def test_exporter_that_sends_inside_a_trajectory_carries_nothing(instrumented, server):
    """OpenTelemetry marks such a context; its requests are no part of the rollout."""
    with rollout_trace_attr(step=3):
        token = otel_context.attach(otel_context.set_value(http_clients._SUPPRESSED[0], True))
        send("urllib3", server.uri)
        otel_context.detach(token)
    assert http_clients._SUPPRESSED[0]
    assert traceparents(server) == [None]


def test_uninstrument_restores_the_clients(tracing, server):
    """A second instrument() adds nothing; uninstrument() undoes the first."""
    urllib3 = pytest.importorskip("urllib3")
    original = urllib3.HTTPConnectionPool.urlopen
    otel_rollout.instrument()
    patched = urllib3.HTTPConnectionPool.urlopen
    otel_rollout.instrument()
    assert urllib3.HTTPConnectionPool.urlopen is patched is not original
    assert inspect.signature(patched) == inspect.signature(original)
    otel_rollout.uninstrument()
    assert urllib3.HTTPConnectionPool.urlopen is original
    with rollout_trace_attr(step=3):
        send("urllib3", server.uri)
    assert traceparents(server) == [None]


def test_clients_are_patched_when_the_program_imports_them():
    """``instrument()`` imports no client; after ``uninstrument()`` none is patched."""
    for client in ("urllib3", "httpx2", "aiohttp"):
        pytest.importorskip(client)
    program = Path(__file__).parent / "programs" / "imports_clients_late.py"
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == {
        "imported by instrument": [],
        "patched": ["urllib3", "httpx2"],
        "patched after uninstrument": [],
    }


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")]
)
def test_clients_and_pools_are_not_patched_where_tracing_is_off(variable, value, fresh_process, monkeypatch):
    """Off means no patch."""
    urllib3 = pytest.importorskip("urllib3")
    originals = urllib3.HTTPConnectionPool.urlopen, ThreadPoolExecutor.submit, ProcessPoolExecutor.submit
    monkeypatch.setenv(variable, value)
    otel_rollout.instrument()
    patched = urllib3.HTTPConnectionPool.urlopen, ThreadPoolExecutor.submit, ProcessPoolExecutor.submit
    assert patched == originals


def test_objects_of_the_application_stay_as_they_are(instrumented, server):
    """Its request shows its own headers, and its session is pickled as before."""
    requests = pytest.importorskip("requests")
    headers = {"X-Own": "1"}
    with rollout_trace_attr(step=3), requests.Session() as session:
        attributes = set(vars(session))
        answer = session.get(server.uri, headers=headers)
        assert set(vars(session)) == attributes
        assert "traceparent" not in {name.lower() for name in answer.request.headers}
        assert pickle.loads(pickle.dumps(session)).headers == session.headers
    assert headers == {"X-Own": "1"}
    assert None not in traceparents(server)


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_request_of_httpx_keeps_its_content_and_headers(name, instrumented, server):
    """The copy that is sent has its body; the answer has the application's request."""
    httpx = pytest.importorskip(name)
    with rollout_trace_attr(step=3), httpx.Client() as client:
        for content in (b"body", iter([b"bo", b"dy"])):
            length = {"Content-Length": "4"}
            request = client.build_request("POST", server.uri, content=content, headers=length)
            answer = client.send(request)
            assert answer.request is request
            assert "traceparent" not in request.headers
    assert [request.body for request in server.received] == [b"body"] * 2
    assert None not in traceparents(server)


async def test_request_of_aiohttp_keeps_its_headers(instrumented, server):
    """Neither the answer's request nor the session's headers show the added header."""
    aiohttp = pytest.importorskip("aiohttp")
    with rollout_trace_attr(step=3):
        async with aiohttp.ClientSession(headers={"X-Own": "1"}) as session:
            async with session.post(server.uri, data=b"body") as answer:
                assert "traceparent" not in answer.request_info.headers
            assert dict(session.headers) == {"X-Own": "1"}
    assert [request.body for request in server.received] == [b"body"]
    assert None not in traceparents(server)


def test_headers_of_a_pool_of_urllib3_are_sent(instrumented, server):
    """A request without headers has its pool's, in which a name may occur twice."""
    urllib3 = pytest.importorskip("urllib3")
    headers = urllib3.response.HTTPHeaderDict([("X-Own", "1"), ("X-Own", "2")])
    with rollout_trace_attr(step=3), urllib3.connection_from_url(server.uri, headers=headers) as pool:
        pool.urlopen(method="GET", url="/")
    assert ", ".join(server.received[0].headers.get_all("X-Own")) == "1, 2"
    assert "traceparent" not in headers
    assert None not in traceparents(server)


def test_retry_of_urllib3_carries_one_header(instrumented, server):
    """Each attempt of a request has the same span."""
    urllib3 = pytest.importorskip("urllib3")
    server.answers["/retried"] = (503, {}, b"")
    retry = urllib3.Retry(2, status_forcelist=[503], backoff_factor=0)
    with rollout_trace_attr(step=3), urllib3.PoolManager() as manager:
        with pytest.raises(urllib3.exceptions.MaxRetryError):
            manager.request("GET", f"{server.uri}/retried", retries=retry)
        expected = [current_traceparent()] * 3
    assert [request.headers.get_all("traceparent") for request in server.received] == [[e] for e in expected]


@pytest.mark.parametrize("name", ["httpx", "httpx2", "aiohttp"])
async def test_cancelled_request_is_cancelled(name, instrumented):
    """A cancellation reaches the client's own code; the context stays as it was."""
    module = pytest.importorskip(name)
    with socket.create_server(("127.0.0.1", 0)) as silent, rollout_trace_attr(step=3):
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        inside = otel_context.get_current()
        async with module.ClientSession() if name == "aiohttp" else module.AsyncClient() as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.get(url), 0.2)
        assert otel_context.get_current() is inside


@pytest.mark.parametrize(("module", "owner", "method"), METHODS)
def test_client_without_the_method_is_named_once(module, owner, method, tracing, monkeypatch, caplog):
    """One line says which client, what it lacks and what to do."""
    monkeypatch.delattr(getattr(pytest.importorskip(module), owner), method)
    otel_rollout.instrument()
    otel_rollout.uninstrument()
    otel_rollout.instrument()
    (record,) = caplog.records
    assert all(part in record.getMessage() for part in (module, owner, method, "inject_headers"))


def test_malformed_url_is_left_to_the_client(instrumented, server):
    """The client raises its own error, and nothing of ours is logged."""
    urllib3 = pytest.importorskip("urllib3")
    pool = urllib3.connection_from_url(server.uri)
    with rollout_trace_attr(step=3), pytest.raises(urllib3.exceptions.LocationParseError):
        pool.urlopen("GET", "http://[", assert_same_host=False)


@pytest.mark.internal_errors
def test_failing_hook_lets_the_request_go_out(instrumented, server, monkeypatch, caplog):
    """An error of ours is logged, and the request has the application's headers."""
    monkeypatch.setattr(http_clients, "missing_headers", lambda host, given: 1 / 0)
    with rollout_trace_attr(step=3):
        assert send("urllib3", server.uri, headers={"X-Own": "1"}) == 200
    assert server.received[0].headers["X-Own"] == "1"
    assert "internal error while adding trace headers" in caplog.text
