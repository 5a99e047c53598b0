"""Give this process the state of one that has just started, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import otel_rollout
from otel_rollout import _state, settings
from otel_rollout._state import process


@contextmanager
def fresh_process() -> Iterator[None]:
    """Let this process decide anew whether and how it records.

    Stop recording at the end of the block.
    """
    otel_rollout.uninstrument()
    os.environ.pop(settings.CONFIG_VARIABLE, None)
    _state.reset()
    try:
        yield
    finally:
        active = process.take_runtime()
        if active is not None:
            active.close(5)
        otel_rollout.uninstrument()
        os.environ.pop(settings.CONFIG_VARIABLE, None)
        _state.reset()
