"""Hold the variables with which this process records."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from opentelemetry.trace import Tracer

from otel_rollout.base.patching import Patches
from otel_rollout.base.state import PER_PROCESS, WIRED, RoomState, do_nothing, register
from otel_rollout.record.recording.provider import RecordingTracerProvider
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.settings import Settings


class Recorder(Protocol):
    """The part of a runtime that packages below :mod:`otel_rollout.record.runtime` use."""

    settings: Settings
    writer: SegmentWriter
    provider: RecordingTracerProvider
    application_tracer: Callable[[], Tracer | None]

    def close(self, timeout: float) -> None:
        """Flush and stop recording."""


@dataclass(slots=True)
class State(RoomState):
    """The runtime of this process, and what else recording needs."""

    off: bool = False
    """Whether this process certainly records nothing; then tracing costs only one read of this field."""
    lock: threading.RLock = field(default_factory=threading.RLock, metadata=PER_PROCESS)
    """Held while this process creates, changes or ends its runtime or its run."""
    runtime: Any = field(default=None, metadata=PER_PROCESS)
    """The :class:`otel_rollout.record.runtime.Runtime`, a :class:`Recorder`; None before the first span."""
    start: Any = field(default=None, metadata=PER_PROCESS)
    """A start of a runtime that is under way, or that a signal handler's exception interrupted."""
    is_starting: bool = field(default=False, metadata=PER_PROCESS)
    """Whether the runtime is being created, in a call that holds ``lock``."""
    current_runtime: Callable[[], Recorder | None] = field(default=do_nothing, metadata=WIRED)
    """Returns this process's runtime; for packages below :mod:`otel_rollout.record.runtime`."""
    switch_on_instrumentors: Callable[[], None] = field(default=do_nothing, metadata=WIRED)
    """Switches on the chosen instrumentors if instrument() was called; for packages below integrations."""
    metrics_are_offered: bool = False
    joined_providers: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """The application's tracer providers that have a span processor of this package."""
    join_patches: Patches | None = None
    """The patches that join the tracers of other libraries."""
    sdk_spans: dict[int, Any] = field(default_factory=dict)
    """Id of an open span of the application's SDK → this package's data about the span."""
    never_ended: deque[tuple[Any, int]] = field(default_factory=deque)
    """Spans of other libraries that were released before their end, each with the time of that in Unix ns."""
    values_to_measure: int = 0
    """How many more values are measured before they are encoded, after a value exceeded its limit."""

    def present_runtime(self) -> Recorder | None:
        """Return the runtime, also one that an interrupted start has created since."""
        present: Recorder | None = self.runtime or (self.start.runtime if self.start is not None else None)
        return present

    def take_runtime(self) -> Recorder | None:
        """Forget the runtime, and return it for the caller to close.

        An interrupted start closes the runtime that it is still creating.
        """
        runtime, start = self.runtime, self.start
        self.runtime = self.start = None
        abandoned: Recorder | None = start.abandon() if start is not None else None
        return runtime or abandoned


state = register(State())
