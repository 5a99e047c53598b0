"""Answer requests of OTLP/HTTP: check them, read their bodies within limits, record their spans."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, NamedTuple

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from otel_rollout.base.errors import warn_once
from otel_rollout.base.waits import waits
from otel_rollout.otlp.received import RedactResource
from otel_rollout.record.receiver.body import ENCODINGS, JSON, MAX_BYTES, PROTOBUF, Body, RefusedRequestError
from otel_rollout.record.receiver.intake import FullError, Intake, IntakeOutcome
from otel_rollout.spool.receiver_files import ReceiverCounts

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PATH: Final = "/v1/traces"
MAX_QUEUED_BYTES: Final = 64 << 20
"""Bytes of bodies that are held at once; further requests are refused until there is room."""
RETRY_AFTER: Final = 1
"""Seconds after which a refused client may try again."""
FULL_ANSWER: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: %d\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    % RETRY_AFTER
)
"""The answer to a connection for which there is no room; its request is not read."""
_RPC_CODES: Final = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 408: 4, 413: 11, 415: 3, 429: 8, 500: 13}
"""HTTP status → code of ``google.rpc.Status``, which OTLP answers with."""
_logger = logging.getLogger("otel_rollout.receiver")


class Acknowledgement(NamedTuple):
    """An answer to a request."""

    status: int
    type_: str
    content: bytes
    headers: Mapping[str, str]


class ReceiverApplication:
    """The receiver as an ASGI application.

    Args:
        intake: records the spans.
        counts: gets the numbers of refused requests.
        token: the token that senders present.
        hosts: accepted values of the header ``Host``; empty if any is accepted.
        redact: redacts the attributes of a resource.
    """

    def __init__(
        self,
        intake: Intake,
        counts: ReceiverCounts,
        token: str,
        hosts: frozenset[str],
        redact: RedactResource | None = None,
    ) -> None:
        self._intake = intake
        self._counts = counts
        self._authorization = f"bearer {token}".encode()
        self._hosts = hosts
        self._redact = redact
        self._queued_bytes = 0
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        type_ = headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            self._check(scope, headers, type_)
            outcome = await self._received(headers, type_, receive)
            answer = _success(type_, outcome)
        except RefusedRequestError as error:
            self._counts.refuse_request(error.status)
            sentence = str(error).rstrip(".")
            warn_once(f"a request was refused ({error.status}): {sentence}", str(error.status), _logger)
            answer = _refusal(type_, error)
        except Exception:
            _logger.exception("a request could not be answered")
            self._counts.refuse_request(500)
            answer = _refusal(type_, RefusedRequestError(500, "The receiver met an error, see its log."))
        await _send(answer, send)

    def refused_connection(self) -> None:
        """Count a connection that is closed because too many are open."""
        self._counts.refuse_request(503)

    def _check(self, scope: Scope, headers: Mapping[str, str], type_: str) -> None:
        """Check what can be checked before the body is read."""
        if self._hosts and headers.get("host", "").lower() not in self._hosts:
            raise RefusedRequestError(403, "The header Host names another server than this one.")
        if scope["path"] != PATH:
            raise RefusedRequestError(404, f"This server receives traces only, at {PATH}.")
        if scope["method"] != "POST":
            raise RefusedRequestError(405, "Spans are sent by POST.", {"allow": "POST"})
        method, _, token = headers.get("authorization", "").strip().partition(" ")
        given = f"{method.lower()} {token.strip()}".encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._authorization):
            raise RefusedRequestError(
                401, "The header Authorization lacks the receiver's token.", {"www-authenticate": "Bearer"}
            )
        if type_ not in (PROTOBUF, JSON):
            raise RefusedRequestError(415, f"The Content-Type is neither {PROTOBUF} nor {JSON}.")
        if headers.get("content-encoding", "").strip().lower() not in ENCODINGS:
            raise RefusedRequestError(415, "The Content-Encoding is neither gzip nor deflate.")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > MAX_BYTES:
            raise RefusedRequestError(413, f"The body has more than {MAX_BYTES} bytes.")

    async def _received(self, headers: Mapping[str, str], type_: str, receive: Receive) -> IntakeOutcome:
        """Read a body and record its spans."""
        parts: list[bytes] = []
        held = 0
        try:
            async for part in _parts(receive):
                held += len(part)
                self._queued_bytes += len(part)
                if held > MAX_BYTES:
                    raise RefusedRequestError(413, f"The body has more than {MAX_BYTES} bytes.")
                if self._queued_bytes > MAX_QUEUED_BYTES:
                    raise _full("The receiver has more requests than it can hold.")
                parts.append(part)
            encoding = headers.get("content-encoding", "").strip().lower()
            body = Body(b"".join(parts), type_, encoding)
            parts.clear()
            async with self._turn:  # one at a time: a decoded body takes many times its bytes
                return await self._intake.take(body.scopes(self._redact))
        except FullError:
            raise _full("The spool takes no more spans at present.") from None
        finally:
            self._queued_bytes -= held


def _full(sentence: str) -> RefusedRequestError:
    return RefusedRequestError(429, sentence, {"retry-after": str(RETRY_AFTER)})


async def _parts(receive: Receive) -> Any:
    """Yield the parts of a body."""
    patience = waits().request_body
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        try:
            left = deadline - asyncio.get_running_loop().time()
            message = await asyncio.wait_for(receive(), left)
        except TimeoutError:
            raise RefusedRequestError(
                408, f"The body did not arrive within {patience:.0f} seconds."
            ) from None
        if message["type"] == "http.disconnect":
            raise RefusedRequestError(400, "The body is incomplete: the client has closed the connection.")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


def _success(type_: str, outcome: IntakeOutcome) -> Acknowledgement:
    sentence = f"{outcome.refused} spans were refused; the first one {outcome.reason}."
    partial = ExportTracePartialSuccess(rejected_spans=outcome.refused, error_message=sentence)
    response = ExportTraceServiceResponse(partial_success=partial if outcome.refused else None)
    return Acknowledgement(200, type_, _encoded(response, type_), {})


def _refusal(type_: str, error: RefusedRequestError) -> Acknowledgement:
    """Return the answer that OTLP demands, in the content type of the request, or else in plain text."""
    if type_ in (PROTOBUF, JSON):
        content = _encoded(Status(code=_RPC_CODES[error.status], message=str(error)), type_)
        return Acknowledgement(error.status, type_, content, error.headers)
    return Acknowledgement(error.status, "text/plain; charset=utf-8", f"{error}\n".encode(), error.headers)


def _encoded(message: Message, type_: str) -> bytes:
    content: bytes = MessageToJson(message).encode() if type_ == JSON else message.SerializeToString()
    return content


async def _send(answer: Acknowledgement, send: Send) -> None:
    headers = {"content-type": answer.type_, "content-length": str(len(answer.content)), **answer.headers}
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": answer.content})
