"""An extension of griffe, which reads the code for the API reference."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Module, Object

from website.docstrings import markdown


class MarkdownDocstrings(Extension):  # type: ignore[misc]  # griffe is in the site's environment only
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
