"""Suggest a known name in place of an unknown one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable


def closest(name: str, known: Iterable[str], similarity: float = 0.7) -> str | None:
    """Return the known name most similar to ``name``; None if none is similar.

    Args:
        name: the name that was given.
        known: the names that exist.
        similarity: minimum ratio of :class:`difflib.SequenceMatcher`, from 0 to 1.
    """
    import difflib  # here: only needed after a mistake

    return next(iter(difflib.get_close_matches(name, list(known), 1, similarity)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?``, or nothing if no known name is similar or has ``name`` as a part.

    The result is appended to a sentence.
    """
    found = closest(name, known) or next((each for each in known if name in re.split(r"\W|_", each)), None)
    return f" Did you mean {found!r}?" if found else ""


def unknown(noun: str, name: str, known: Collection[str]) -> str:
    """Return sentences that reject an unknown name, suggest a similar one, and list the known names."""
    return (
        f"There is no {noun} {name!r}.{did_you_mean(name, known)} {noun.capitalize()}s: {', '.join(known)}."
    )
