"""Describe in one sentence what is wrong with a query, from the engine's error."""

from __future__ import annotations

import re
from typing import Final

from otel_rollout.base.suggest import did_you_mean, unknown
from otel_rollout.table import views

_NO_TABLE: Final = re.compile(r"table '(?:datafusion\.)?(?:public\.)?(?P<name>[^']*)' not found")
_NO_COLUMN: Final = re.compile(r"No field named (?P<name>\S+?)\.?(?:\s+(?:Valid|Did)|\s*$)", re.DOTALL)
_VALID: Final = re.compile(r"Valid fields are (?P<names>.*)", re.DOTALL)
_PARSER: Final = re.compile(r'(?:ParserError|TokenizerError)\("')
_LINE: Final = re.compile(r" at Line: (?P<line>\d+), Column: (?P<column>\d+)")
_NO_FILE: Final = re.compile(r"Object at location (?P<path>\S+) not found")
_PREFIX: Final = re.compile(
    r"^(?:\w+\ncaused by\n)*(?:(?:Error during planning|Schema error|Execution error|Arrow error|SQL error|"
    r"This feature is not implemented|External error|Optimizer rule '[^']*' failed|type_coercion|"
    r"DataFusion error): ?)*"
)
_MAX_COLUMNS: Final = 40
_MAX_WORDS: Final = 300


def in_words(message: str, example: str) -> str:
    """Turn an error of the engine into one sentence.

    Args:
        message: what the engine says.
        example: a correct query or condition, to show.
    """
    if match := _NO_FILE.search(message):
        return (
            f"A file of the table is missing: {match['path']}. If the table was compacted or pruned "
            "meanwhile, open it again."
        )
    if match := _NO_TABLE.search(message):
        return unknown("view", match["name"], views.NAMES)
    if match := _NO_COLUMN.search(message):
        return _no_column(match["name"].strip("'\"`."), message)
    if match := _PARSER.search(message):
        words, _, _ = message[match.end() :].rpartition('")')
        return f"The SQL is wrong: {_at_place(words)}. Right is, for example, {example}."
    words = " ".join(_PREFIX.sub("", message).split())
    return f"The query failed: {words[:_MAX_WORDS].rstrip('.')}."


def _no_column(name: str, message: str) -> str:
    valid = _VALID.search(message)
    names = re.findall(r"[\w.\"]+", valid["names"]) if valid else []
    known = list(dict.fromkeys(each.strip(".").rpartition(".")[2].strip('"') for each in names))
    short = name.rpartition(".")[2].strip('"')
    listed = f" Columns: {', '.join(known[:_MAX_COLUMNS])}." if known else ""
    return f"There is no column {short!r}.{did_you_mean(short, known)}{listed}"


def _at_place(words: str) -> str:
    """Replace the parser's line number by that in the user's text, which begins one line later."""
    match = _LINE.search(words)
    words = _LINE.sub("", words).replace("\\'", "'").replace("found: EOF", "found: its end")
    if match is None:
        return words
    return f"{words}, at line {max(1, int(match['line']) - 1)}, column {match['column']}"
