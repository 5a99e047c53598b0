"""Read and write the files of a node directory's receiver: its lock, address and counts.

The address has a token, so only this user may read the file, as every file of a node directory. Only the
receiver writes these files, except the note of its start, which the starting process writes.
"""

from __future__ import annotations

import dataclasses
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from otel_rollout.spool.layout import read_json, write_json
from otel_rollout.spool.locks import ProcessLock
from otel_rollout.spool.private_files import open_private

LOG_FILE: Final = "receiver.log"
_LOCK_FILE: Final = "receiver.lock"
_ADDRESS_FILE: Final = "receiver.json"
_COUNTS_FILE: Final = "receiver.counts.json"
_STARTED_FILE: Final = "receiver.started"


def receiver_lock(node_dir: Path) -> ProcessLock:
    """Open the lock whose holder is the receiver of a node directory."""
    return ProcessLock(node_dir / _LOCK_FILE)


def is_receiving(node_dir: Path) -> bool:
    """Return whether a receiver runs for a node directory."""
    try:
        with closing(receiver_lock(node_dir)) as lock:
            return lock.is_held()
    except OSError:
        return False


def may_start(node_dir: Path, pause: float) -> bool:
    """Note that this process starts a receiver; return False if one was started in the last ``pause`` s.

    Many processes of a run see at once that the receiver is gone.
    """
    descriptor = open_private(node_dir / _STARTED_FILE, os.O_WRONLY | os.O_CREAT)
    try:
        state = os.fstat(descriptor)
        if state.st_size and 0 <= time.time() - state.st_mtime < pause:
            return False
        os.pwrite(descriptor, b"\n", 0)
        return True
    finally:
        os.close(descriptor)


@dataclasses.dataclass(frozen=True)
class ReceiverAddress:
    """Where a receiver listens.

    Attributes:
        host: numeric address, without brackets.
        port: the port.
        token: token that senders present; empty in the file of a receiver whose token the user has set.
    """

    host: str
    port: int
    token: str = dataclasses.field(repr=False)

    @property
    def endpoint(self) -> str:
        """The value of ``OTEL_EXPORTER_OTLP_ENDPOINT``."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared only
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def headers(self) -> str:
        """The value of ``OTEL_EXPORTER_OTLP_HEADERS``."""
        return f"authorization=Bearer%20{quote(self.token, safe='')}"


def publish_address(node_dir: Path, address: ReceiverAddress) -> None:
    """Write the address for the processes that start senders, and for the next receiver."""
    write_json(node_dir / _ADDRESS_FILE, dataclasses.asdict(address))


def read_address(node_dir: Path) -> ReceiverAddress | None:
    """Return the address of a node directory's receiver; None before the first one listens."""
    found = read_json(node_dir / _ADDRESS_FILE)
    try:
        return ReceiverAddress(str(found["host"]), int(found["port"]), str(found["token"]))
    except (KeyError, TypeError, ValueError):
        return None


@dataclasses.dataclass
class ReceiverCounts:
    """What a node directory's receivers have received.

    Attributes:
        recorded: spans that were recorded.
        sampled_out: spans of traces that head sampling excludes.
        refused_spans: reason → spans that were refused, while the rest of their request was taken.
        refused_requests: HTTP status → requests that were refused.
        changed_ids: recorded spans that got new ids, because other spans of their traces had theirs.
        problem: why nothing can be received; empty while it can.
    """

    recorded: int = 0
    sampled_out: int = 0
    refused_spans: dict[str, int] = dataclasses.field(default_factory=dict)
    refused_requests: dict[str, int] = dataclasses.field(default_factory=dict)
    changed_ids: int = 0
    problem: str = ""

    def refuse_span(self, reason: str) -> None:
        """Count a refused span."""
        self.refused_spans[reason] = self.refused_spans.get(reason, 0) + 1

    def refuse_request(self, status: int) -> None:
        """Count a refused request."""
        self.refused_requests[str(status)] = self.refused_requests.get(str(status), 0) + 1


def publish_counts(node_dir: Path, counts: ReceiverCounts) -> None:
    """Write the counts for ``status``, and for the next receiver, because this one may be killed.

    Raises:
        OSError: when the file cannot be written.
    """
    write_json(node_dir / _COUNTS_FILE, dataclasses.asdict(counts))


def read_counts(node_dir: Path) -> ReceiverCounts | None:
    """Return the counts of a node directory's receivers; None if none has run."""
    found = read_json(node_dir / _COUNTS_FILE)
    try:
        return ReceiverCounts(
            int(found["recorded"]),
            int(found["sampled_out"]),
            {str(reason): int(number) for reason, number in found["refused_spans"].items()},
            {str(status): int(number) for status, number in found["refused_requests"].items()},
            int(found.get("changed_ids", 0)),
            str(found["problem"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def has_failed_since(node_dir: Path, seconds: float) -> str:
    """Return the problem that a receiver has reported in the last ``seconds``; empty without one."""
    counts = read_counts(node_dir)
    if counts is None or not counts.problem:
        return ""
    try:
        age = time.time() - (node_dir / _COUNTS_FILE).stat().st_mtime
    except OSError:
        return ""
    return counts.problem if age < seconds else ""
