"""Check that a text is one query.

The engine also knows statements that write files, copy tables and read files. These checks refuse a text that
does not begin as a query, that has several statements or a target, or that closes a parenthesis which it did
not open. So the engine can first plan the text in parentheses after ``SELECT * FROM``, where its grammar has
only queries.
"""

from __future__ import annotations

import re
from typing import Final

from otel_rollout.table.errors import TableError

_TOKEN: Final = re.compile(
    r"""
    (?P<escape>\b[eE]') | (?P<string>'(?:[^']|'')*') | (?P<name>"(?:[^"]|"")*") | (?P<comment>--[^\n]*)
    | (?P<block>/\*) | (?P<open>\() | (?P<close>\)) | (?P<end>;) | (?P<dollar>\$\w*\$) | (?P<quote>['"])
    | (?P<backtick>`) | (?P<word>\w+)
    """,
    re.VERBOSE,
)
_NOTHING: Final = re.compile(r"(?:\s|;|--[^\n]*)*")
_QUERIES: Final = ("select", "with", "values")
_MAX_SHOWN: Final = 40


class QueryError(TableError):
    """A query is wrong; the message is one sentence for a person."""


def query(sql: str) -> str:
    """Return a user's query without a final semicolon and the comments after it.

    Raises:
        QueryError: the text is empty, several statements, or a statement other than a query.
    """
    text, words = _checked(sql.strip(), "query")
    first = words[0].lower() if words else ""
    if first not in _QUERIES:
        raise QueryError(f"Only a SELECT can be run, and this begins with {_shown(text)}: nothing was done.")
    if "into" in map(str.lower, words):
        raise QueryError("Only a SELECT without INTO can be run: nothing was done.")
    return text


def expression(text: str) -> str:
    """Return a user's condition in parentheses.

    Raises:
        QueryError: the text is empty or no single expression.
    """
    if not text.strip():
        raise QueryError("The condition is empty.")
    checked, _ = _checked(text, "condition")
    return f"(\n{checked}\n)"


def literal(value: str) -> str:
    """Quote a text as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def _checked(text: str, noun: str) -> tuple[str, list[str]]:
    """Return a text without the semicolon that ends it, and the words outside quotes and comments.

    Raises:
        QueryError: a quote or comment does not end, the parentheses are not balanced, there are several
            statements, or the text has a backtick, a string with escapes or a NUL character.
    """
    if "\0" in text:
        raise QueryError(f"The {noun} contains a NUL character.")
    words, depth, position = [], 0, 0
    while match := _TOKEN.search(text, position):
        position, kind = match.end(), match.lastgroup
        if kind == "block":
            position = _end_of_comment(text, position, noun)
        elif kind in ("quote", "dollar"):
            raise QueryError(
                f"The {noun} has a quote that does not end, near {_shown(text[match.start() :])}."
            )
        elif kind == "backtick":
            raise QueryError(f'The {noun} has a backtick; names are quoted as "name".')
        elif kind == "escape":
            raise QueryError(f"The {noun} has a string with escapes (E'…'); write a quote in a string twice.")
        elif kind == "end" and _NOTHING.fullmatch(text, position):
            text = text[: match.start()]
        elif kind == "end":
            raise QueryError(f"The {noun} has several statements; one SELECT can be run: nothing was done.")
        elif kind == "word":
            words.append(match[0])
        depth += (kind == "open") - (kind == "close")
        if depth < 0:
            raise QueryError(f"The {noun} closes a parenthesis that it did not open.")
    if depth:
        raise QueryError(f"The {noun} has a parenthesis that does not end.")
    return text.strip(), words


def _end_of_comment(text: str, position: int, noun: str) -> int:
    end = text.find("*/", position)
    inner = text.find("/*", position)
    if end < 0 or 0 <= inner < end:  # engines differ in comments inside comments
        raise QueryError(f"The {noun} has a comment that does not end.")
    return end + 2


def _shown(text: str) -> str:
    words = " ".join(text.split())
    return repr(words[:_MAX_SHOWN]) if words else "nothing"
