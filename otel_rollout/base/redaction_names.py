"""Name the redactions that come with the package, and what they put in place of a text."""

from __future__ import annotations

from typing import Final

from otel_rollout.base.setting_parsers import listed, meant

SHIPPED: Final = "secrets"
"""Name of the redaction that replaces texts that look like secrets."""
EVERYTHING: Final = "everything"
"""Name of the redaction that replaces all text except names, ids and kinds."""
MARK: Final = "[redacted]"
"""Text that replaces a secret."""


def problem(names: str) -> str:
    """Return what is wrong with names of redactions, as the end of a sentence; empty if nothing is."""
    if names and not listed(names):
        return "names no redaction"
    for word in listed(names):
        if word not in (SHIPPED, EVERYTHING) and ":" not in word:
            allowed = f"{SHIPPED}, {EVERYTHING}, module:function{meant(word, (SHIPPED, EVERYTHING))}"
            return f"has {word!r}, which is none of {allowed}"
    return ""
