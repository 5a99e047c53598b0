"""Cutting calls into requests that Weave takes: bounded in calls and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from otel_rollout_weave.mapping import Call

MAX_CALLS: Final = 1000
"""Calls per request, as weave's own client limits it."""
MAX_REQUEST_BYTES: Final = 8 << 20
"""Bytes per request. The server takes 32 MiB; more than this is no faster and longer in memory."""


def requests_of(calls: Iterable[Call], max_bytes: int = MAX_REQUEST_BYTES) -> Iterator[list[Call]]:
    """Cut calls into batches; one that is larger than ``max_bytes`` goes alone."""
    batch: list[Call] = []
    size = 0
    for call in calls:
        if batch and (len(batch) >= MAX_CALLS or size + len(call.encoded) > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(call)
        size += len(call.encoded) + 1
    if batch:
        yield batch
