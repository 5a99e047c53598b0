"""A compressed file that was cut off is told from a complete one."""

from __future__ import annotations

import logging
import random
import struct
from pathlib import Path

import pytest
from backports import zstd

from otel_rollout.spool import files

LINES = b"".join(b'{"line": %d}\n' % random.Random(0).getrandbits(64) for _ in range(3))


def compressed(content: bytes, checksum: bool = False) -> bytes:
    return zstd.compress(content, options={zstd.CompressionParameter.checksum_flag: int(checksum)})


def streamed(content: bytes) -> bytes:
    """Return a frame that does not tell the size of its content."""
    made = zstd.ZstdCompressor()
    return made.compress(content) + made.flush()


WHOLE = {
    "one frame": compressed(LINES),
    "frame with checksum": compressed(LINES, checksum=True),
    "streamed": streamed(LINES),
    "several blocks": compressed(random.Random(0).randbytes(300_000)),
    "repeated bytes": compressed(bytes(1_000_000)),
    "two frames": compressed(LINES) + streamed(LINES),
    "skippable frame": struct.pack("<II", 0x184D2A53, 3) + b"abc" + compressed(LINES),
    "no content": compressed(b""),
}


@pytest.mark.parametrize("name", WHOLE)
def test_file_without_its_end_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Wherever it was cut, but between two frames, the log says so."""
    whole = WHOLE[name]
    path = tmp_path / "lines.jsonl.zst"
    path.write_bytes(whole)
    list(files.lines_of(path))
    assert not caplog.records
    ends = [0, 1, 6, len(whole) // 3, len(whole) - 1]
    for end in ends:
        path.write_bytes(whole[:end])
        caplog.clear()
        list(files.lines_of(path))
        assert [record.getMessage() for record in caplog.records] == [
            f"{path} is cut off: its end is missing, and only what precedes it is read"
        ], end


@pytest.mark.parametrize("blocks", [1, 3, 40])
def test_lines_before_the_cut_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture, blocks: int) -> None:
    """All of the frames before it, and of the frame that was cut what zstd can tell."""
    lines = LINES * (5000 * blocks)
    path = tmp_path / "lines.jsonl.zst"
    path.write_bytes(compressed(lines))
    assert b"".join(files.lines_of(path)) == lines
    assert not caplog.records
    path.write_bytes(compressed(lines) + compressed(lines)[:-1])
    with caplog.at_level(logging.WARNING):
        found = b"".join(files.lines_of(path))
    assert found[: len(lines)] == lines
    assert (lines + lines).startswith(found)
    assert f"{path} is cut off" in caplog.text
