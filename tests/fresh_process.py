"""Give this process the state of one that has just started, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import otel_rollout
from otel_rollout import settings
from otel_rollout.base.state import reset
from otel_rollout.record.recording.state import state


@contextmanager
def fresh_process() -> Iterator[None]:
    """Let this process decide anew whether and how it records.

    Stop recording at the end of the block.
    """
    otel_rollout.uninstrument()
    os.environ.pop(settings.CONFIG_VARIABLE, None)
    reset()
    try:
        yield
    finally:
        active = state.take_runtime()
        if active is not None:
            active.close(5)
        otel_rollout.uninstrument()
        os.environ.pop(settings.CONFIG_VARIABLE, None)
        reset()
