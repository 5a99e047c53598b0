"""Replacing attributes of other people's classes and modules, so that it can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Patches:
    """A set of replaced attributes.

    When somebody else has replaced one of them after us, undoing leaves theirs in place; what they call is
    our replacement still, so replacements ask :attr:`active` before they do anything of their own.
    """

    def __init__(self) -> None:
        self.active = True
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace ``owner.name`` by what ``make`` makes of it."""
        original = vars(owner)[name]
        replacement = make(original)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, original, replacement))

    def undo(self) -> None:
        """Put back what was there, where ours is still in place."""
        self.active = False
        while self._replaced:
            owner, name, original, replacement = self._replaced.pop()
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)
