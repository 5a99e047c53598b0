"""Find secrets in text, even in text that was encoded several times.

A value that is JSON is parsed, and each string in it is searched as a value again, at any depth. Any other
value is searched as it is. Then its escapes (``\\n``, ``\\"``, ``\\u0041``) are resolved and it is searched
again, until no escapes are left: prose may hold JSON, or a piece of JSON.

Secrets are returned as ranges of the outermost text. So all other bytes stay unchanged, and JSON stays JSON.
Every step takes at most linear time.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, cast

import orjson

from otel_rollout.otlp.json_line import HEAD_WITHOUT_RESOURCE, NOT_TEXT
from otel_rollout.redaction.secret_patterns import IS_OPTION, KINDS, TextSpan, is_secret_name

_BY_SIGNS: Final = {
    signs: [kind for kind in KINDS.values() if kind.signs == signs]
    for signs in dict.fromkeys(kind.signs for kind in KINDS.values())
}
"""Signs → kinds, so that signs that several kinds share are searched once."""
_ESCAPES_OF_SIGNS = ("\\u00", "\\x", "\\/")
"""Beginnings of escapes with which JSON and Python's ``repr`` may write the characters of a sign."""


def redact_secrets(line: bytes) -> bytes:
    """Replace keys, tokens and passwords in a line; keep all other bytes."""
    text = line.decode("utf-8", "surrogateescape")
    if not may_hold_secrets(text):
        return line
    is_line = is_json(HEAD_WITHOUT_RESOURCE + line) or is_json(line)
    found = find_in_json(text, is_line=True) if is_line else find_in_text(text)
    return replace(text, found).encode("utf-8", "surrogateescape")


def may_hold_secrets(text: str) -> bool:
    """Return quickly whether a text may hold secrets; always True if it does."""
    lowered = text.lower()
    return any(sign in lowered for sign in _ALL_SIGNS)


_ALL_SIGNS: Final = (
    *dict.fromkeys(sign for kind in KINDS.values() for sign in kind.signs),
    *_ESCAPES_OF_SIGNS,
)


def replace(text: str, spans: Iterable[TextSpan]) -> str:
    """Replace ranges of a text, which may overlap, by their marks."""
    parts, done = [], 0
    for start, end, mark in sorted(spans):
        if start < done:  # overlaps the range before
            done = max(done, end)
            continue
        parts += [text[done:start], mark]
        done = end
    return "".join([*parts, text[done:]])


def find_in_value(text: str) -> Iterable[TextSpan]:
    """Find secrets in a value, which may be JSON."""
    if text.lstrip()[:1] in ("{", "[", '"') and is_json(text):
        return find_in_json(text)
    return find_in_text(text)


def find_in_text(text: str) -> Iterator[TextSpan]:
    """Find secrets in text, as it is and with its escapes resolved."""
    lowered = text.lower()
    for signs, kinds in _BY_SIGNS.items():
        if any(sign in lowered for sign in signs):
            for kind in kinds:
                if any(sign in lowered for sign in kind.more_signs):
                    yield from kind.find(text)
    if "\\" in text:
        plain = _unescaped(text)
        if len(plain) < len(text):
            yield from _in_encoded(text, find_in_text(plain), 0)


def is_json(text: str | bytes) -> bool:
    """Return whether a whole text is JSON."""
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(
    rf"\\(?:u(?P<high>[dD][89abAB]{_HEX}{{2}})\\u(?P<low>[dD][c-fC-F]{_HEX}{{2}})|"
    rf"u(?P<u>{_HEX}{{4}})|x(?P<x>{_HEX}{{2}})|(?P<character>[\"'\\/bfnrt]))"
)
_ESCAPED_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _character(escape: re.Match[str]) -> str:
    """Return the character that an escape stands for."""
    character = escape["character"]
    if character:
        return _ESCAPED_CONTROLS.get(character, character)
    if escape["high"]:
        return chr(0x10000 + ((int(escape["high"], 16) & 0x3FF) << 10) + (int(escape["low"], 16) & 0x3FF))
    return chr(int(escape["u"] or escape["x"], 16))


def _unescaped(encoded: str) -> str:
    """Resolve the escapes of a JSON string's content, or of other text, once."""
    if "\\" not in encoded:
        return encoded
    try:
        return cast("str", orjson.loads(f'"{encoded}"'))  # same result as _ESCAPE.sub, many times faster
    except ValueError:
        return _ESCAPE.sub(_character, encoded)


def _in_encoded(encoded: str, found: Iterable[TextSpan], offset: int) -> Iterator[TextSpan]:
    """Map ranges of unescaped text to ranges of its encoded form, and add ``offset``."""
    found = list(found)
    escapes = list(_ESCAPE.finditer(encoded)) if found else []
    shifts = [0, *accumulate(len(escape[0]) - 1 for escape in escapes)]
    positions = [escape.start() - shift for escape, shift in zip(escapes, shifts, strict=False)]
    for start, end, mark in found:
        yield TextSpan(
            offset + start + shifts[bisect_left(positions, start)],
            offset + end + shifts[bisect_left(positions, end)],
            mark,
        )


_TOKEN = re.compile(r'"(?P<string>[^"\\]*(?:\\.[^"\\]*)*)"?(?P<colon>\s*:)?|[\[\]{}]', re.DOTALL)
_PAIR_ENDS = re.compile(r"\s*\]")
_COMMA = re.compile(r"\s*,\s*")


@dataclass(slots=True)
class _Container:
    """An object or array that is open at a position of the JSON.

    Attributes:
        is_hidden: whether all text in the container is secret.
        key: key of the next member.
        is_named: whether the member ``name`` or ``key`` names a secret, which is in the member ``value``.
        value_begins: number of the JSON's strings before the member ``value``.
        value_ends: number of the strings up to the end of that member.
        begins_with_name: whether the first string of an array names a secret. In an array of two, the second
            string is secret.
        follows_option: whether the previous string in an array is a command-line option whose value is
            secret.
        previous_end: position in the JSON at which the previous string in an array ends.
        redacted_keys: number of keys with a secret.
    """

    is_hidden: bool = False
    key: str = ""
    is_named: bool = False
    value_begins: int = 0
    value_ends: int = 0
    begins_with_name: bool | None = None
    follows_option: bool = False
    previous_end: int = 0
    redacted_keys: int = 0

    def hides_next(self) -> bool:
        """Return whether the next value is secret."""
        return self.is_hidden or (self.is_named and self.key.lower() == "value") or is_secret_name(self.key)


def find_in_json(text: str, is_line: bool = False) -> Iterator[TextSpan]:
    """Find secrets in strings of JSON, and all strings under names of secrets.

    Args:
        text: JSON.
        is_line: whether the JSON is OTLP, in which numbers and bytes may be strings.
    """
    here, around = _Container(), []
    strings: list[TextSpan] = []
    ranges_named_late: list[tuple[int, int]] = []
    for token in _TOKEN.finditer(text):
        bracket = token[0]
        if token["string"] is not None:
            if token["colon"]:
                _end_value(here, len(strings))
                yield from _in_key(token, here)
                if here.key.lower() == "value":
                    here.value_begins = here.value_ends = len(strings)
            elif not (is_line and here.key in NOT_TEXT):
                was_named = here.is_named
                strings.append(TextSpan(*token.span("string")))
                _end_value(here, len(strings))
                yield from _in_string(token, here)
                if here.is_named and not was_named and here.value_ends > here.value_begins:
                    ranges_named_late.append((here.value_begins, here.value_ends))
        elif bracket in "[{":
            around.append(here)
            here = _Container(here.hides_next())
        elif around:
            here = around.pop()
            _end_value(here, len(strings))
            here.key = ""
    yield from _strings_within(strings, ranges_named_late)


def _end_value(here: _Container, strings: int) -> None:
    """Store the number of strings up to the end of a member ``value``."""
    if here.key.lower() == "value":
        here.value_ends = strings


def _strings_within(strings: list[TextSpan], ranges: list[tuple[int, int]]) -> Iterator[TextSpan]:
    """Yield the nonempty strings in ranges of string numbers, each string once."""
    done = 0
    for first, end in sorted(ranges):
        yield from (span for span in strings[max(first, done) : end] if span.start < span.end)
        done = max(done, end)


def _in_key(token: re.Match[str], here: _Container) -> Iterator[TextSpan]:
    """Find secrets in a key; number redacted keys to keep them distinct."""
    encoded = token["string"]
    here.key = _unescaped(encoded)
    if not may_hold_secrets(encoded):
        return
    found = list(_in_encoded(encoded, find_in_value(here.key), token.start("string")))
    yield from found
    if found:
        here.redacted_keys += 1
        if here.redacted_keys > 1:
            end = token.end("string")
            yield TextSpan(end, end, f" {here.redacted_keys}")


def _in_string(token: re.Match[str], here: _Container) -> Iterable[TextSpan]:
    """Find secrets in a string that is not a key."""
    encoded = token["string"]
    start, end = token.span("string")
    # A number or an object between two strings is the value of the first.
    is_next = bool(here.follows_option or here.begins_with_name) and (
        _COMMA.fullmatch(token.string, here.previous_end, token.start()) is not None
    )
    is_secret = (
        here.hides_next()
        or (is_next and here.follows_option and not encoded.startswith("-"))
        or (is_next and here.begins_with_name and _PAIR_ENDS.match(token.string, token.end()))
    )
    key, here.key = here.key, ""
    here.previous_end = token.end()
    here.follows_option = not key and encoded[:1] == "-" and IS_OPTION.fullmatch(encoded) is not None
    if is_secret:
        return [TextSpan(start, end)] if start < end else ()
    if key.lower() in ("name", "key") and not here.is_named:
        here.is_named = is_secret_name(_unescaped(encoded))
    if here.begins_with_name is None:
        here.begins_with_name = not key and is_secret_name(_unescaped(encoded))
    elif here.begins_with_name:
        here.begins_with_name = False
    return (
        _in_encoded(encoded, find_in_value(_unescaped(encoded)), start) if may_hold_secrets(encoded) else ()
    )
