"""Name the reasons for which the loss does not use a trajectory that integrations and analyses share."""

from __future__ import annotations

from typing import Final

UNUSED: Final = "training ended before it was used"
"""The trajectory waited in a buffer when training ended, as is usual."""
