"""Features of the installed verl.

These tests also run with older versions (``make verl-older``).
"""

from __future__ import annotations

import importlib.metadata

import pytest

VERL = tuple(int(part) for part in importlib.metadata.version("verl").split(".")[:2])

needs_v1 = pytest.mark.skipif(
    VERL < (0, 9), reason="before 0.9 verl has neither this trainer's worker nor lists of outputs"
)
needs_request_ids = pytest.mark.skipif(
    VERL < (0, 9), reason="before 0.9 verl makes these ids where none sees them"
)
needs_resuming_client = pytest.mark.skipif(VERL < (0, 9), reason="before 0.9 no client resumes requests")
needs_text_of_calls = pytest.mark.skipif(
    VERL < (0, 9), reason="before 0.9 token2text is for agent loops only"
)
