"""Turn the docstrings' reStructuredText into Markdown, for the API reference.

Docstrings use two of its forms: roles (``:func:`configure```) and a ``::`` before an indented block.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Module, Object

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([\w.]+)`")
_BLOCK = re.compile(r"::(?=\n\n +\S)")


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: a role becomes code, ``::`` becomes a colon."""
    return _BLOCK.sub(":", _ROLE.sub(r"`\1`", docstring))


class MarkdownDocstrings(Extension):
    """Hands each docstring to the reference as Markdown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object inside a package."""
        _rewrite(obj)

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Rewrite the docstring of a package, which griffe does not hand to `on_object`."""
        _rewrite(pkg)


def _rewrite(documented: Object) -> None:
    if documented.docstring is not None:
        documented.docstring.value = markdown(documented.docstring.value)
