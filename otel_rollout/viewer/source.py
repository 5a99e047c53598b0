"""Define the interface of sources of trajectories: spool and MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.forwarder.detokenizer import Detokenizer
from otel_rollout.viewer.reference import Reference
from otel_rollout.viewer.summary import Summary


class Source(Protocol):
    """A source from which the viewer reads trajectories.

    Attributes:
        location: the directory, file or server, for messages.
        notes: remarks about the last :meth:`find`, such as that an older run is shown.
    """

    location: str
    notes: tuple[str, ...]

    def find(self, reference: Reference | None) -> list[Summary]:
        """Return the matching trajectories of the newest run that has any.

        Without a reference, return all trajectories of the newest run.
        """

    def spans(self, trace_id: str) -> list[ReadableSpan]:
        """Return all spans of a trace."""

    def traces(self, trace_ids: Sequence[str]) -> dict[str, list[ReadableSpan]]:
        """Return all spans of each trace, by its id."""

    def decoder(self, name: str) -> Detokenizer | None:
        """Return the decoder of the tokenizer that a run calls ``name``; None if missing."""


@runtime_checkable
class TrainingSource(Protocol):
    """A source that knows what training made of all trajectories of a step."""

    def is_passed_over(self, trace_id: str) -> bool:
        """Return whether the trainer named others of the step, and not this trajectory."""
