"""Find the model calls of engines' requests by request id: among calls read so far, and in recorded files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.otlp import engine_requests
from otel_rollout.otlp.engine_requests import Ambiguous, Call, Placement, Request

JOINED: Final = "joined"
"""Outcome of a request whose call is found."""
AMBIGUOUS: Final = "ambiguous: several calls have its id"
"""Outcome of a request that several calls may have made."""
OTHER_TIME: Final = "calls with its id are of other times"
"""Outcome of a request that lies within no call of its id."""
NO_CALL: Final = "no call has its id"
"""Outcome of a request whose id no recorded span has."""
KEPT: Final = ""
"""Outcome, which is not counted, of a request below another span that no call in a trajectory has made."""
MAX_CALLS: Final = 1 << 17
"""Ids of calls that are remembered; the ids that were read first are forgotten first."""
_MAX_CALLS_OF_ID: Final = 16
"""Calls that are remembered of one id, the latest ones."""


class Calls:
    """The model calls read so far, by the ids of their requests.

    Args:
        wanted: the ids of calls that are remembered; None for those of the latest ``MAX_CALLS`` calls.
    """

    def __init__(self, wanted: Container[str] | None = None) -> None:
        self._wanted = wanted
        self._by_id: BoundedDict[str, tuple[Call, ...]] = BoundedDict(
            MAX_CALLS if wanted is None else sys.maxsize
        )

    def add(self, line: bytes) -> None:
        """Remember a line's span if it has the id of a request."""
        ids, call = engine_requests.calls_in(line)
        for id_ in ids if self._wanted is None else (id_ for id_ in ids if id_ in self._wanted):
            if call is not None:
                known = self._by_id.pop(id_, ())
                self._by_id[id_] = (*known[1 - _MAX_CALLS_OF_ID :], call)

    def find(self, request: Request, is_last: bool) -> tuple[str, Placement | None] | None:
        """Return the outcome of a request, and where its span belongs; None if it should wait.

        Args:
            request: the request.
            is_last: whether the request has waited long enough.
        """
        calls = [call for id_ in engine_requests.call_ids_of(request.id) for call in self._by_id.get(id_, ())]
        clock_errors = (engine_requests.CLOCK_ERROR_NS, engine_requests.REMOTE_CLOCK_ERROR_NS)
        for clock_error in clock_errors if is_last else clock_errors[:1]:
            try:
                call = engine_requests.call_of(request, calls, clock_error)
            except Ambiguous:
                return AMBIGUOUS, None
            if call is not None:
                return JOINED, engine_requests.placement_of(request, call)
        if not is_last:
            return None
        return KEPT if request.has_parent else OTHER_TIME if calls else NO_CALL, None


class RecordedCalls:
    """Puts engines' spans in recorded files under their model calls, as the forwarder does.

    Args:
        lines: reads the lines of all files; called twice, and only once without such spans.
    """

    def __init__(self, lines: Callable[[], Iterable[bytes]]) -> None:
        found_in = (
            engine_requests.request_in(line) for line in lines() if engine_requests.is_without_call(line)
        )
        requests = [request for request in found_in if request is not None]
        self._placements: dict[Request, Placement] = {}
        self._above: dict[tuple[str, str], Placement | None] = {}
        if not requests:
            return
        calls = Calls({id_ for request in requests for id_ in engine_requests.call_ids_of(request.id)})
        for line in lines():
            calls.add(line)
        for request in requests:
            found = calls.find(request, is_last=True)
            if found is not None and found[1] is not None:
                self._placements[request] = found[1]

    def joined(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield lines, with engines' spans and their phases in the places of their requests.

        A phase must come after the span above it, as a recorder writes them. It may come in a later call.
        """
        if not self._placements:
            yield from lines
            return
        for line in lines:
            placement = None
            if engine_requests.is_without_call(line):
                request = engine_requests.request_in(line)
                if request is not None:
                    placement = self._above[request[:2]] = self._placements.get(request)
            elif engine_requests.is_phase(line):
                placement = self._above.get(engine_requests.engine_span_of(line))
            yield line if placement is None else engine_requests.placed(line, placement)
