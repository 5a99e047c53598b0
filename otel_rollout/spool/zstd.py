"""Import Python's module for zstd; before Python 3.14, its backport."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, DecompressionParameter, ZstdError, ZstdFile
else:
    from backports.zstd import CompressionParameter, DecompressionParameter, ZstdError, ZstdFile

__all__ = ["CompressionParameter", "DecompressionParameter", "ZstdError", "ZstdFile"]
