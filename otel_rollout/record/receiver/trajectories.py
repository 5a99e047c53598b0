"""Know the identity of the trajectories of this machine by their trace ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.otlp import scan
from otel_rollout.otlp.json_line import spans_of_json
from otel_rollout.otlp.reader import UnreadableLineError, parsed_line
from otel_rollout.record.recording.identity import Identity
from otel_rollout.spool import layout
from otel_rollout.spool.root_table import read_open

_MAX_KNOWN: Final = 1 << 16
"""Trajectories whose identity is remembered, also after their end: senders export in batches."""


class Known(NamedTuple):
    """A trajectory of this machine.

    Attributes:
        identity: its identity.
        span_id: the id of its root span, in hex.
        is_root: whether the trajectory is not part of another one.
    """

    identity: Identity
    span_id: str
    is_root: bool


class Trajectories:
    """Finds the identity of trajectories in the root tables of the recording processes.

    Args:
        node_dir: the node directory.
    """

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._known: BoundedDict[bytes, Known] = BoundedDict(_MAX_KNOWN)
        self._seen: dict[str, dict[int, int]] = {}
        self._is_stale = True

    def begin_request(self) -> None:
        """Note that trajectories may have begun: the first unknown trace id is looked up again."""
        self._is_stale = True

    def find(self, trace_id: bytes) -> Known | None:
        """Return the trajectory of a trace id; None if this machine does not record it."""
        found = self._known.get(trace_id)
        if found is None and self._is_stale:
            self.read()
            found = self._known.get(trace_id)
        return found

    def read(self) -> None:
        """Read the root tables; call this from time to time: a table forgets those that ended long ago."""
        self._is_stale = False
        writers = layout.journals(self._node_dir)
        self._seen = {writer: self._seen.get(writer, {}) for writer in writers}
        for writer in writers:
            for line in read_open(self._node_dir / (writer + layout.OPEN_SUFFIX), self._seen[writer]):
                self._note(line)

    def _note(self, line: bytes) -> None:
        trace_id, is_root = scan.trace_id_of(line), scan.may_have_root(line)
        if trace_id is None:
            return
        known = self._known.get(trace_id)
        if known is not None and (known.is_root or not is_root):
            return
        try:
            (span,) = spans_of_json(parsed_line(line))
            self._known[trace_id] = _known(span.scalars(), span.span_id, is_root)
        except (UnreadableLineError, ValueError, KeyError, TypeError):  # the slot is being written
            return


def _known(attributes: Mapping[str, Any], span_id: str, is_root: bool) -> Known:
    identity = Identity({key: attributes.get(key) for key in semconv.IDENTITY})
    return Known(identity, span_id, is_root)
