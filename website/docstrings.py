"""Turn the docstrings' reStructuredText into Markdown, for the API reference.

Docstrings use two of its forms: roles (``:func:`configure```) and a ``::`` before an indented block.
"""

from __future__ import annotations

import re

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([\w.]+)`")
_BLOCK = re.compile(r"::(?=\n\n +\S)")


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: a role becomes code, ``::`` becomes a colon."""
    return _BLOCK.sub(":", _ROLE.sub(r"`\1`", docstring))
