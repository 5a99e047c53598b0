"""Name the redactions that come with the package, and what they put in place of a text."""

from __future__ import annotations

from typing import Final

from otel_rollout.base.setting_parsers import listed

SHIPPED: Final = "secrets"
"""Replaces texts that look like secrets."""
EVERYTHING: Final = "everything"
"""Replaces all text except names, identity and kind."""
MARK: Final = "[redacted]"
"""Text that replaces a secret."""


def unknown(names: str) -> list[str]:
    """Return the words of a redaction that are neither ours nor ``module:function``."""
    return [word for word in listed(names) if word not in (SHIPPED, EVERYTHING) and ":" not in word]
