"""Small segments, so that a few spans fill several of them."""

from __future__ import annotations

import functools

import pytest

from otel_rollout.record import runtime
from otel_rollout.record.recording.writer import SegmentWriter


def set_segment_bytes(size: int, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Give this process's runtime segments of ``size`` bytes: until the test's end, or the process's."""
    writer = functools.partial(SegmentWriter, segment_bytes=size)
    (monkeypatch or pytest.MonkeyPatch()).setattr(runtime, "SegmentWriter", writer)
