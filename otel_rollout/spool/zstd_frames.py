"""Find out whether a file of zstd frames is complete (RFC 8878, section 3.1).

The library decompresses what is there: a file that was cut off looks like a shorter one, or an empty one.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Final

_MAX_HEADER_BYTES: Final = 18
_BLOCK_HEADER_BYTES: Final = 3
_CHECKSUM_BYTES: Final = 4
_SKIPPABLE_HEADER_BYTES: Final = 8
_SKIPPABLE: Final = 0x184D2A5
"""Magic number of frames without content, without its last digit."""
_REPEATED_BYTE: Final = 1
"""Type of a block that holds one byte, however long its content is."""


def is_cut_off(path: Path) -> bool:
    """Return whether the last frame of a file lacks its end; no content is decompressed.

    Raises:
        OSError: the file cannot be read.
        zstandard.ZstdError: what follows a frame is no frame.
    """
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        position = 0
        while position < size:
            position = _end_of_frame(file, position, size)
    return position > size


def _end_of_frame(file: BinaryIO, start: int, size: int) -> int:
    """Return the position after a frame; one beyond the file's size if the frame is not complete."""
    import zstandard

    file.seek(start)
    header = file.read(_MAX_HEADER_BYTES)
    if len(header) < _SKIPPABLE_HEADER_BYTES:
        return size + 1
    if int.from_bytes(header[:4], "little") >> 4 == _SKIPPABLE:
        return start + _SKIPPABLE_HEADER_BYTES + int.from_bytes(header[4:8], "little")
    position = start + zstandard.frame_header_size(header)
    is_last = False
    while not is_last:
        file.seek(position)
        block = file.read(_BLOCK_HEADER_BYTES)
        if len(block) < _BLOCK_HEADER_BYTES:
            return size + 1
        value = int.from_bytes(block, "little")
        is_last, type_, length = bool(value & 1), value >> 1 & 3, value >> 3
        position += _BLOCK_HEADER_BYTES + (1 if type_ == _REPEATED_BYTE else length)
    has_checksum = zstandard.get_frame_parameters(header).has_checksum
    return position + (_CHECKSUM_BYTES if has_checksum else 0)
