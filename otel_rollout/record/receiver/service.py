"""Run the receiver of a node directory until the run has no other process."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from otel_rollout.base import semconv
from otel_rollout.base.waits import waits
from otel_rollout.record.receiver.app import FULL_ANSWER, ReceiverApplication
from otel_rollout.record.receiver.intake import JOURNAL_BYTES, Intake, Policy, Trajectories
from otel_rollout.record.receiver.listening import accepted_hosts
from otel_rollout.record.recording.sampling import decision_of
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.record.runs.founding import create_node_directory
from otel_rollout.redaction.redaction import redacted_attributes, redaction_of
from otel_rollout.settings import Settings
from otel_rollout.spool import layout, segments
from otel_rollout.spool.locks import ProcessLock
from otel_rollout.spool.receiver_files import (
    ReceiverAddress,
    ReceiverCounts,
    publish_address,
    publish_counts,
    read_counts,
)

_MAX_CONNECTIONS: Final = 512
"""Maximum number of connections at once. A further one takes the place of an idle one, or is refused."""
_KEEP_ALIVE: Final = 30
"""Seconds for which an idle connection stays open."""
_logger = logging.getLogger("otel_rollout.receiver")


class Service:
    """Receives spans for one node directory.

    Args:
        node_dir: the node directory.
        configured: settings of the run.
        lock: the receiver's lock, which the caller holds.
        listening: the socket.
        address: address and token.

    Raises:
        OSError: the spool cannot be used.
        ValueError: redaction or sampler cannot be loaded; then nothing may be recorded.
    """

    def __init__(
        self,
        node_dir: Path,
        configured: Settings,
        lock: ProcessLock,
        listening: socket.socket,
        address: ReceiverAddress,
    ) -> None:
        self._node_dir = node_dir
        self._lock = lock
        self._listening = listening
        self._address = address
        self._has_own_token = not configured.receive_token
        self._counts = read_counts(node_dir) or ReceiverCounts()
        self._counts.problem = ""
        redact = redaction_of(configured.redact)

        def found() -> None:
            """Create a removed directory again, with the address that senders know."""
            create_node_directory(configured)
            self._publish()

        self._writer = _writer(node_dir, configured, found)
        self._trajectories = Trajectories(node_dir)
        policy = Policy(
            configured.run_id,
            redact,
            decision_of(configured.sampler, configured.sampler_arg),
            configured.receive_traces == "trajectories",
        )
        intake = Intake(self._writer, self._trajectories, self._counts, policy, self._publish_counts)
        application = ReceiverApplication(
            intake,
            self._counts,
            address.token,
            accepted_hosts(address),
            None if redact is None else functools.partial(redacted_attributes, redact),
        )
        self._server = uvicorn.Server(_config(application))

    def run(self) -> None:
        """Serve until the run ends, or the directory has another receiver."""
        self._publish()
        _logger.info("receiving at %s for %s", self._address.endpoint, self._node_dir)
        try:
            asyncio.run(self._serve())
        finally:
            self._writer.close(waits().threads)
            publish_counts(self._node_dir, self._counts)

    def _publish(self) -> None:
        """Write the address, without a token that the user has set: senders have such a token already."""
        shown = self._address if self._has_own_token else dataclasses.replace(self._address, token="")
        publish_address(self._node_dir, shown)

    def _publish_counts(self) -> None:
        with suppress(OSError):  # a full disk: the counts are published later
            publish_counts(self._node_dir, self._counts)

    async def _serve(self) -> None:
        publish_counts(self._node_dir, self._counts)
        watching = asyncio.create_task(self._watch())
        await self._server.serve(sockets=[self._listening])
        watching.cancel()

    async def _watch(self) -> None:
        """Publish the counts; stop when the lock is lost, or some time after the run's last other process."""
        published = copy.deepcopy(self._counts)
        last_alive = time.monotonic()
        while not self._server.should_exit:
            await asyncio.sleep(waits().receiver_watch)
            try:
                if segments.living_writers(self._node_dir) - {self._writer.id}:
                    last_alive = time.monotonic()
                    self._trajectories.read()
                if self._counts != published:
                    publish_counts(self._node_dir, self._counts)
                    published = copy.deepcopy(self._counts)
                is_ours = self._lock.is_current()
            except OSError as error:  # the directory is being removed, or the disk is full
                _logger.warning("%s", error)
                is_ours = self._node_dir.is_dir()
            if not is_ours or time.monotonic() - last_alive > waits().receiver_linger:
                self._server.should_exit = True


class _ImpatientProtocol(H11Protocol):
    """Closes a connection whose client takes too long to send the head of a request.

    uvicorn's own limit of connections refuses requests, but no connections. Idle connections would use up the
    process's file descriptors, and keep every other client away.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request, if there is room for one more connection."""
        super().connection_made(transport)
        if len(self.connections) > _MAX_CONNECTIONS and not self._close_an_idle_one():
            self.config.app.refused_connection()  # type: ignore[union-attr]
            transport.write(FULL_ANSWER)
            transport.close()
            return
        self._wait()

    def _close_an_idle_one(self) -> bool:
        for other in self.connections - {self}:
            if other.cycle is None or other.cycle.response_complete:  # type: ignore[union-attr]
                self.connections.discard(other)  # now: its end is announced later
                other.transport.close()
                return True
        return False

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head, if data has not completed it."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for a request."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(waits().request_head, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _config(application: ReceiverApplication) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=_ImpatientProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        log_level="critical",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=2,
    )


def _writer(node_dir: Path, configured: Settings, found: Callable[[], object]) -> SegmentWriter:
    return SegmentWriter(
        node_dir,
        {semconv.RUN_ID: configured.run_id, semconv.PROJECT_NAME: configured.project_name},
        spool_limit=configured.spool_limit or layout.default_limit(node_dir),
        found=found,
        journal_bytes=JOURNAL_BYTES,
        is_resource_open=True,
    )
