"""Make tracers of an application's own provider for our spans."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from otel_rollout.record.recording.provider import RANDOM_BITS, mark_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer


class _OwnIds(IdGenerator):
    """Draws ids from its own generator, because training seeds the SDK's."""

    def __init__(self, run_id: str) -> None:
        self._mark = int(mark_of(run_id), 16) << RANDOM_BITS
        self._bits = random.Random(os.urandom(16)).getrandbits  # noqa: S311 - ids, not secrets

    def generate_span_id(self) -> int:
        return self._mark | self._bits(RANDOM_BITS)

    def generate_trace_id(self) -> int:
        return self._bits(128) or 1


def tracer_of(provider: TracerProvider, scope: str, version: str, run_id: str) -> Tracer:
    """Return a tracer of the application's provider for our own spans, whose ids have the run's mark."""
    tracer = provider.get_tracer(scope, version)
    # A generator that the application chose stays.
    if type(getattr(tracer, "id_generator", None)) is RandomIdGenerator:
        tracer.id_generator = _OwnIds(run_id)  # type: ignore[attr-defined]
    return tracer
