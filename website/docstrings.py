"""Turn the docstrings' reStructuredText into Markdown, for the API reference.

Docstrings use two of its forms: roles (``:func:`configure```) and a ``::`` before an indented block. They
name pages by path (``docs/recording.md``).
"""

from __future__ import annotations

import re

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([\w.]+)`")
_PAGE = re.compile(r"(?<![\w/`])docs/([\w-]+\.md)")
_BLOCK = re.compile(r"::(?=\n\n +\S)")


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: a role and a page's path become links, ``::`` a colon.

    A role whose name is not in the reference becomes code.
    """
    linked = _PAGE.sub(r"[\1](../\1)", docstring)
    return _BLOCK.sub(":", _ROLE.sub(r'<autoref identifier="\1" optional>`\1`</autoref>', linked))
