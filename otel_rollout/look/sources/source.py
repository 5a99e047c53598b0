"""Define where trajectories are read from: a table, or spans that become one for a moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import Summary
from otel_rollout.look.sources.reference import Reference
from otel_rollout.otlp.span import Span
from otel_rollout.turns.detokenizer import Detokenizer


class Source(Protocol):
    """A source from which the viewer reads trajectories.

    Attributes:
        location: the directory, file or server, for messages.
        notes: remarks about the last :meth:`find`, such as that an older run is shown.
    """

    location: str
    notes: tuple[str, ...]

    def find(self, reference: Reference | None) -> list[Summary]:
        """Return the matching trajectories of the newest run that has any; at most a page of a list.

        Without a reference, return the first trajectories of the newest run.
        """

    def conversation(self, trace_id: str, part: int | None = None) -> Conversation:
        """Return a trajectory that was found, turn by turn.

        Args:
            trace_id: id of its trace.
            part: id of a span; the trajectory that this span begins inside the trace is returned.
        """


class SpanSource(Protocol):
    """Spans that are in no table: a spool, a file or MLflow.

    Attributes:
        location: the directory, file or server, for messages.
    """

    location: str

    def matching(self, reference: Reference | None) -> Iterator[tuple[Iterable[Span], int | None]]:
        """Yield for each run, the newest first, what answers a question about the reference.

        That is all spans of the trajectories that may match, and those roots and scores of others that
        decide what training made of them, and whose a score by identity is. If only some of the trajectories
        are read, their number comes with it.
        """

    def every_span(self) -> Iterator[Span]:
        """Yield the spans of all runs."""

    def notes(self, reference: Reference | None, found: Sequence[Summary]) -> tuple[str, ...]:
        """Return remarks about trajectories that were found."""

    def decoder(self, name: str) -> Detokenizer | None:
        """Return the decoder of the tokenizer that a run calls ``name``; None if missing."""
