"""Test shared lines: each is read, rewritten and decoded once, in bounded memory."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.deliver.lines import LineCache
from otel_rollout.otlp.json_line import TraceLine
from otel_rollout.otlp.span import Span
from otel_rollout.spool import segments
from otel_rollout.spool.layout import SegmentName
from tests.forwarder.tokens_support import line

SEGMENTS = [SegmentName("1-00000000000000aa", number) for number in (1, 2)]
LINES = 200


@pytest.fixture(scope="module")
def node_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node directory with lines of different lengths in two segments."""
    made = tmp_path_factory.mktemp("node")
    for segment in SEGMENTS:
        content = [line(number, {"text": "x" * (number % 7)}, {}) for number in range(1, LINES + 1)]
        (made / segment.file).write_bytes(b"".join(content) + b'{"half of a line')
    return made


def test_lines_of_exporters_at_one_pace_are_read_rewritten_and_decoded_once(node_dir, monkeypatch):
    """Three exporters take turns; each line is read, rewritten and decoded once."""
    counts = {"read": 0, "rewritten": 0, "decoded": 0}
    read, decode = segments.complete_lines, Span.complete

    def counted_read(*arguments):
        for found in read(*arguments):
            counts["read"] += 1
            yield found

    def counted_decode(span):
        counts["decoded"] += 1
        return decode(span)

    def rewrite(recorded: bytes) -> TraceLine:
        counts["rewritten"] += 1
        return TraceLine(recorded)

    monkeypatch.setattr(segments, "complete_lines", counted_read)
    monkeypatch.setattr(Span, "complete", counted_decode)
    cache = LineCache(node_dir, rewrite)
    readers = [cache.reader() for _ in range(3)]
    for segment in SEGMENTS:
        positions = [0, 0, 0]
        for _ in range(LINES // 20):
            for number, reader in enumerate(readers):
                for taken in itertools.islice(reader.read(segment, positions[number], sys.maxsize), 20):
                    assert len(taken.exported.spans) == 1
                    positions[number] = taken.end
    assert counts == dict.fromkeys(counts, 2 * LINES)


@given(data=st.data(), max_bytes=st.sampled_from([0, 5_000, 50_000, 1 << 20]))
def test_readers_at_any_pace_get_every_line_within_the_bound(node_dir, data, max_bytes):
    """Readers get every line for any positions and limits, in bounded memory."""
    cache = LineCache(node_dir, max_bytes=max_bytes)
    readers = [cache.reader() for _ in range(3)]
    ends = {
        segment: [end for _, end in segments.complete_lines(node_dir / segment.file, 0, sys.maxsize)]
        for segment in SEGMENTS
    }
    for _ in range(data.draw(st.integers(1, 30))):
        segment, reader = data.draw(st.sampled_from(SEGMENTS)), data.draw(st.sampled_from(readers))
        start = data.draw(st.sampled_from([0, *ends[segment]]))
        limit, at_most = data.draw(st.integers(0, 30_000)), data.draw(st.integers(1, 50))
        reader.is_waiting = data.draw(st.booleans())
        expected = itertools.islice(segments.complete_lines(node_dir / segment.file, start, limit), at_most)
        found = [
            (taken.recorded, taken.end)
            for taken in itertools.islice(reader.read(segment, start, limit), at_most)
        ]
        assert found == list(expected)
        assert cache._lines._total <= max_bytes


def test_no_line_is_cached_for_an_exporter_that_waits(node_dir):
    """The outage of one target does not fill the cache."""
    cache = LineCache(node_dir)
    ahead, away = cache.reader(), cache.reader()
    away.is_waiting = True
    assert len(list(ahead.read(SEGMENTS[0], 0, sys.maxsize))) == LINES
    assert not cache._lines


def test_no_line_is_cached_for_an_only_exporter(node_dir):
    """Lines are cached only for readers that are behind."""
    cache = LineCache(node_dir)
    assert len(list(cache.reader().read(SEGMENTS[0], 0, sys.maxsize))) == LINES
    assert not cache._lines
