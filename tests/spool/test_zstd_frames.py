"""A compressed file that was cut off is told from a complete one."""

from __future__ import annotations

import logging
import random
import struct
from pathlib import Path

import pytest
import zstandard

from otel_rollout.spool import files
from otel_rollout.spool.zstd_frames import is_cut_off

LINES = b"".join(b'{"line": %d}\n' % random.Random(0).getrandbits(64) for _ in range(3))


def compressed(content: bytes, checksum: bool = False) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=checksum).compress(content)


def streamed(content: bytes) -> bytes:
    """Return a frame that does not tell the size of its content."""
    made = zstandard.ZstdCompressor().compressobj()
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
    "empty file": b"",
}


@pytest.mark.parametrize("name", WHOLE)
def test_file_without_its_end_is_cut_off(tmp_path: Path, name: str) -> None:
    """Wherever it was cut, but between two frames."""
    whole = WHOLE[name]
    path = tmp_path / "lines.jsonl.zst"
    path.write_bytes(whole)
    assert not is_cut_off(path)
    ends = [1, 6, len(whole) // 3, len(whole) - 1]
    for end in ends if whole else ():
        path.write_bytes(whole[:end])
        assert is_cut_off(path), end


def test_cut_file_is_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its first lines are read; a complete file is read without a word."""
    path = tmp_path / "lines.jsonl.zst"
    path.write_bytes(compressed(LINES))
    assert b"".join(files.lines_of(path)) == LINES
    assert not caplog.records
    path.write_bytes(compressed(LINES) + compressed(LINES)[:-1])
    with caplog.at_level(logging.WARNING):
        list(files.lines_of(path))
    assert f"{path} is cut off" in caplog.text
