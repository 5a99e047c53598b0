"""Find secrets in text, wherever they stand and however often the text was encoded.

Secrets are looked for in values. A value that is JSON is taken apart, and each string in it is a value again,
at any depth. Other text is looked at as it is, and again with its escapes (``\\n``, ``\\"``, ``\\u0041``)
replaced by what they stand for, until it has none: prose may hold JSON, or a piece of it.

What is found is given as spans of the outermost text. So whatever is no part of a secret stays as it is, byte
by byte, and JSON stays JSON. Every pattern and every step takes time proportional to the text at most.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple, cast

import orjson

MARK: Final = "[redacted]"


class Span(NamedTuple):
    """A part of a text that is to be replaced."""

    start: int
    end: int
    mark: str = MARK


class Kind(NamedTuple):
    """One kind of secret.

    Attributes:
        signs: lower-case text; where none of it is in a text, neither is a secret of this kind.
        pattern: matches what may hold such a secret.
        secret: gives the part of a match that is one, if any.
        also: lower-case text of which some is besides in every text with such a secret.
    """

    signs: tuple[str, ...]
    pattern: re.Pattern[str]
    secret: Callable[[re.Match[str]], Span | None]
    also: tuple[str, ...] = ("",)

    def find(self, text: str) -> Iterator[Span]:
        """Find the secrets of this kind in a text."""
        for match in self.pattern.finditer(text):
            span = self.secret(match)
            if span is not None:
                yield span


def replaced(text: str, spans: Iterable[Span]) -> str:
    """Replace the spans, which may overlap, by their marks."""
    parts, done = [], 0
    for start, end, mark in sorted(spans):
        if start < done:  # part of what was replaced before
            done = max(done, end)
            continue
        parts += [text[done:start], mark]
        done = end
    return "".join([*parts, text[done:]])


# --- Names that tell of a secret, and what is assigned to them ----------------------------------------------

_SEPARATED = (("api", "key"), ("access", "key"), ("access", "token"), ("auth", "token"), ("refresh", "token"))
NAME: Final = (
    r"(?:password|passwd|secret(?:[ _-]?key)?|authorization|"
    + "|".join(f"{first}[ _-]?{second}" for first, second in _SEPARATED)
    + ")"
)
_NAME_SIGNS = (
    "passw",
    "secret",
    "authorization",
    *(first + between + second for first, second in _SEPARATED for between in ("", "_", "-", " ")),
)
_TELLING_NAME = re.compile(NAME + r"[a-z0-9_. -]{0,16}\Z", re.IGNORECASE | re.ASCII)
_LONG_NAME = 128

_BACKSLASH = r"\\(?![nrtu\"'\\/])"
"""One that does not begin an escape."""
_VALUE = (
    # A quoted value, to the end of its line where the closing quote is missing; or one without quotes.
    r"(?:[bruf]{0,2}(?:"
    r'"""(?P<triple>.*?)"""|'
    r"'''(?P<triple_single>.*?)'''|"
    r'"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|'
    r"'(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'|"
    r"`(?P<back>[^`]*)`|"
    r"[\"'`](?P<open>[^\n\r]*))|"
    # Strings in brackets, as Python shows a list, tuple, set or dict: to the bracket that closes it.
    r"\[\s{0,16}(?=[\"'])(?P<list>[^\]]*)|\(\s{0,16}(?=[\"'])(?P<tuple>[^)]*)|\{\s{0,16}(?=[\"'])(?P<dict>[^}]*)|"
    r"(?P<scheme>(?:basic|bearer|digest|negotiate|token|apikey)[ \t]{1,8})?"
    rf"(?P<plain>(?:[^\s\"'`\\&,;…]|{_BACKSLASH})+))"
)
_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL
_ASSIGNMENT = re.compile(
    NAME + r"[a-z0-9_.-]{0,16}[\"'`]?\]?\s{0,16}(?P<operator>=>|:=|==?|:)\s{0,16}" + _VALUE, _FLAGS
)
_QUOTED = ("triple", "triple_single", "double", "single", "back", "open", "list", "tuple", "dict")
_ENDS_HERE = re.compile(r"""[ \t]{0,16}(?:[\r\n"'`,;…]|\Z)""")
_TYPES = re.compile(
    r"(?:str|string|int|bytes|bool|float|none|null|true|false|any|dict|list|object)\b.*", re.I | re.S
)


def is_telling(name: str) -> bool:
    """Whether what has this name is a secret by its name."""
    return _TELLING_NAME.search(name[-_LONG_NAME:]) is not None


def _assigned(match: re.Match[str]) -> Span | None:
    """Give the value that a name is set to."""
    group = next((name for name in _QUOTED if match[name] is not None), "plain")
    start, end = match.span(group)
    return Span(start, end) if start < end and (group != "plain" or _is_a_value(match)) else None


def _is_a_value(match: re.Match[str]) -> bool:
    """Whether text without quotes is what a name is set to, rather than prose or code that goes on."""
    if match["operator"] == "==":
        return False
    if match["operator"] != ":" or match["scheme"]:
        return True
    return _ENDS_HERE.match(match.string, match.end()) is not None and not _TYPES.fullmatch(match["plain"])


# --- Names and values of command lines, XML, URLs and pairs -------------------------------------------------

_QUOTED_NAME = rf"[\"'][a-z0-9_. -]{{0,32}}?{NAME}[a-z0-9_. -]{{0,16}}[\"']"
_STRING = r"(?:\"(?P<double>[^\"\\]*(?:\\.[^\"\\]*)*)%s|'(?P<single>[^'\\]*(?:\\.[^'\\]*)*)%s)"
"""A quoted string; what has to follow its text is filled in."""

_OPTION_NAME = (
    rf"-(?<![a-z0-9_-]-)-?(?:[a-z0-9_-]{{0,32}}?{NAME}[0-9_-]{{0,4}}|"
    r"(?:(?:hf|huggingface|api|bot|bearer|github|gitlab|private|session)[_-])?token)"
)
_OPTION = re.compile(
    rf"{_OPTION_NAME}(?:"
    rf"[\"'],\s{{0,16}}{_STRING % ('', '')}|"  # in a list of arguments
    r"(?:=|\s{1,16})(?:\"(?P<quoted>[^\"]*)|'(?P<quoted_single>[^']*)|"
    rf"(?!<)(?P<plain>(?:[^\s\"'`\\,;…]|{_BACKSLASH})+)))",
    _FLAGS,
)
_IS_OPTION = re.compile(_OPTION_NAME, re.IGNORECASE | re.ASCII)
_FOLLOWS_OPTION_IN_PROSE = re.compile(
    rf"-.*|(?:{NAME}|token|options?|flags?|arguments?|parameters?|switch|value|and|are|as|at|can|for|from|has|"
    r"if|in|instead|is|may|must|of|on|or|should|that|the|to|was|were|when|will|with|without)?[.:!?)\]}]*",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
_PARTS = ("double", "single", "quoted", "quoted_single", "plain")


def _of_option(match: re.Match[str]) -> Span | None:
    """Give the value of a command-line option, unless the match is another option or prose."""
    groups = match.groupdict()
    part = next(name for name in _PARTS if groups.get(name) is not None)
    return (
        None
        if not groups[part] or _FOLLOWS_OPTION_IN_PROSE.fullmatch(groups[part])
        else Span(*match.span(part))
    )


_NAME_MEMBER = (
    r"(?:name(?<![a-z0-9_]name)|key(?<![a-z0-9_]key))[\"']?\s{0,16}[:=]\s{0,16}"
    rf"[\"']?[a-z0-9_. -]{{0,32}}?{NAME}[a-z0-9_.-]{{0,16}}(?:[\"']|(?=\s|,))"
)
_VALUE_MEMBER = r"(?<![a-z0-9_])value[\"']?\s{0,16}[:=]\s{0,16}"
_BETWEEN = r"\s{0,16}[,;]?\s{0,32}[\"']?"


def _of_group(*names: str | int) -> Callable[[re.Match[str]], Span | None]:
    """Make a function that gives the text of the first of these groups that has some."""

    def secret(match: re.Match[str]) -> Span | None:
        return next((Span(*match.span(name)) for name in names if match[name]), None)

    return secret


def _named_value(match: re.Match[str]) -> Span | None:
    """Give the value that stands beside a name."""
    span = _of_group(*_QUOTED, "plain")(match)
    return None if match["plain"] and _TYPES.fullmatch(match["plain"]) else span


_PERCENT = "%(?:25){0,3}"
"""Begins an escape of a URL, which may have been encoded more than once."""
_KINDS_BY_NAME: Final = {
    "assignment": Kind(_NAME_SIGNS, _ASSIGNMENT, _assigned),
    "option": Kind(_NAME_SIGNS, _OPTION, _of_option, ("-",)),
    "option of a token": Kind(("-token", "_token"), _OPTION, _of_option),
    "element": Kind(
        _NAME_SIGNS,
        re.compile(
            rf"<[a-z0-9_.:-]{{0,64}}?{NAME}[a-z0-9_.-]{{0,16}}(?:\s[^<>]{{0,256}})?>\s{{0,16}}"
            r"(?:<!\[CDATA\[(.*?)(?:\]\]>|\Z)|([^<]*)(?=<(?:[/…]|\Z))|([^<\s…]+)(?=\s{0,16}(?:…|\Z)))",
            _FLAGS,
        ),
        _of_group(1, 2, 3),
        ("<",),
    ),
    "URL-encoded": Kind(
        _NAME_SIGNS,
        re.compile(
            rf"{NAME}[a-z0-9_.-]{{0,16}}(?:{_PERCENT}(?:2[027]|5D)|\+){{0,4}}{_PERCENT}3[AD]"
            rf"(?:{_PERCENT}2[027]|\+){{0,4}}"
            rf"((?:(?!{_PERCENT}(?:26|22|27|2C|3B|0[AD])|%7D)[^\s\"'`\\&,;…<>])+)",
            _FLAGS,
        ),
        _of_group(1),
        ("%3d", "%3a", "253d", "253a"),
    ),
    "pair": Kind(
        _NAME_SIGNS,
        re.compile(
            rf"[(\[]\s{{0,16}}[bru]{{0,2}}{_QUOTED_NAME}\s{{0,16}},\s{{0,16}}[bruf]{{0,2}}(?:"
            + _STRING % ((r"(?:\"\s{0,16},?\s{0,16}[)\]]|\Z)"), (r"(?:'\s{0,16},?\s{0,16}[)\]]|\Z)"))
            + r"|[\"'](?P<cut>[^\n\r\"'…]*)(?=…))",
            _FLAGS,
        ),
        _of_group("double", "single", "cut"),
        ("',", '",'),
    ),
    "name and value": Kind(
        _NAME_SIGNS,
        re.compile(_NAME_MEMBER + _BETWEEN + _VALUE_MEMBER + _VALUE, _FLAGS),
        _named_value,
        ("value",),
    ),
    "value and name": Kind(
        _NAME_SIGNS,
        re.compile(
            _VALUE_MEMBER + "[bruf]{0,2}" + _STRING % ('"', "'") + _BETWEEN + _NAME_MEMBER,
            _FLAGS,
        ),
        _of_group("double", "single"),
        ("value",),
    ),
}
"""Kinds that a name tells of."""


# --- Secrets that say themselves what they are --------------------------------------------------------------

_WORD_BEGINS = r"(?:(?<![A-Za-z0-9])|(?<=[0-9;\[]m)|(?<=%[0-9A-Fa-f]{2}))"
"""Not within a word; colours of a terminal (``\\x1b[32m``) and escapes of URLs (``%20``) end one."""
_NOT_IN_URL = r"/\s\"'`<>…"
_NAME_IN_URL = rf"[^:@\[\]{_NOT_IN_URL}]"
_PEM = r"-{4,5} ?%s [A-Z0-9 ]{0,40}PRIVATE KEY"


def _rest(character: str, shortest: int, like_a_word: bool = False) -> str:
    """Match what follows the beginning of a key, of at least so many characters unless a limit cut it.

    Our limits leave a sign of it. Those of OpenTelemetry's SDK do not: the end of the text may be one. There
    a key that looks like a word (``hf_datasets``) is one only if it has a digit.
    """
    is_key = f"(?={character}*[0-9])" if like_a_word else ""
    return f"(?:{character}{{{shortest},}}|{character}+(?=…)|{is_key}{character}{{8,}}\\Z)"


def _kind(*signs: str, pattern: str, flags: int = 0, group: str | int = 0, needs: str | int = 0) -> Kind:
    """Make a kind whose secrets are what a group of a pattern matches, where another group takes part."""

    def secret(match: re.Match[str]) -> Span | None:
        return Span(*match.span(group)) if match[needs] is not None else None

    return Kind(signs, re.compile(pattern, flags | re.ASCII), secret)


KINDS: Final = {
    **_KINDS_BY_NAME,
    # Of two numbers they are ids of a user and a group, which other programs take.
    "curl": Kind(
        ("curl",),
        re.compile(
            r"(?<![^\s\"'(\[,])(?:-[a-z]{0,8}u|--(?:proxy-)?user(?=[\s=\"']))(?:=|[\"'],)?\s{0,16}"
            r"(?![0-9]{1,16}:[0-9]{1,16}(?:\s|\Z))(?:"
            rf"\"[^\s:\"\\]{{1,128}}:(?P<double>(?:[^\"\\]|{_BACKSLASH})+)|"
            rf"'[^\s:'\\]{{1,128}}:(?P<single>(?:[^'\\]|{_BACKSLASH})+)|"
            rf"[^\s:\"'`/\\]{{1,128}}:(?P<plain>(?:[^\s\"'`\\;…]|{_BACKSLASH})+))",
            _FLAGS,
        ),
        _of_group("double", "single", "plain"),
    ),
    "URL": _kind("://", pattern=rf"://{_NAME_IN_URL}{{0,256}}:([^{_NOT_IN_URL}]{{1,256}})@", group=1),
    "URL cut by a limit": _kind(
        "://",
        pattern=rf"://{_NAME_IN_URL}{{0,256}}:(?=[0-9]*[^0-9])([^@{_NOT_IN_URL}]{{6,256}})(?=…|\Z)",
        group=1,
    ),
    "bearer": _kind(
        "bearer",
        pattern=rf"bearer\s{{1,64}}({_rest('[a-z0-9._~+/-]', 16)}=*)",
        flags=re.IGNORECASE,
        group=1,
    ),
    "OpenAI and Anthropic": _kind("sk-", pattern=_WORD_BEGINS + "sk-" + _rest("[A-Za-z0-9_-]", 20, True)),
    "AWS": _kind("akia", "asia", pattern="(?:AKIA|ASIA)" + _rest("[0-9A-Z]", 16)),
    "GitHub": _kind("ghp_", "gho_", "ghu_", "ghs_", "ghr_", pattern="gh[pousr]_" + _rest("[A-Za-z0-9]", 36)),
    "GitHub, fine-grained": _kind("github_pat_", pattern="github_pat_" + _rest("[A-Za-z0-9_]", 22)),
    "GitLab": _kind("glpat-", pattern="glpat-" + _rest("[A-Za-z0-9_-]", 20)),
    "Hugging Face": _kind("hf_", pattern="hf_" + _rest("[A-Za-z0-9]", 30, True)),
    "Slack": _kind("xox", pattern="xox[abprs]-" + _rest("[A-Za-z0-9-]", 10)),
    "Google": _kind("aiza", pattern=_WORD_BEGINS + "AIza" + _rest("[0-9A-Za-z_-]", 35)),
    # The first part is taken whole, so that no other attempt begins within it.
    "JSON Web Token": _kind(
        "eyj",
        pattern=r"eyJ[A-Za-z0-9_-]+"
        r"(?P<more>(?:\.[A-Za-z0-9_-]*){2,4}|\.[A-Za-z0-9_-]{4,}(?=…|\Z)|(?=…))?",
        needs="more",
    ),
    # To the end of the text where the end of the key is missing, and from where it may begin where that is.
    "private key": _kind(
        "private key",
        pattern=rf"{_PEM % 'BEGIN'}.*?(?:{_PEM % 'END'}[A-Z0-9 ]{{0,20}}-{{4,5}}|\Z)",
        flags=re.DOTALL,
    ),
    "end of a private key": _kind(
        "private key",
        pattern=r"[A-Za-z0-9+/=]+(?:[ \t]*(?:\r?\n[ \t]*)+[A-Za-z0-9+/=]+)*"
        rf"(?P<end>\s*(?={_PEM % 'END'}))?",
        needs="end",
    ),
    # Where the middle of a long text is left out, the rest of the line may be the end of anything.
    "line cut by a limit": _kind(
        "more characters) …",
        pattern=rf"more characters\) …((?:[^\r\n\\]|{_BACKSLASH}){{1,2048}})",
        group=1,
    ),
}
"""Every kind of secret that is found."""

_BY_SIGNS: Final = {
    signs: [kind for kind in KINDS.values() if kind.signs == signs]
    for signs in dict.fromkeys(kind.signs for kind in KINDS.values())
}
"""Kinds with the same signs, which are looked for once."""
_ESCAPES_OF_SIGNS = ("\\u00", "\\x", "\\/")
"""What a sign may be written with in JSON and in Python's ``repr``, other than itself."""


def may_hold_secrets(text: str) -> bool:
    """Whether there may be secrets in a text; quick, and true of all that has some."""
    lowered = text.lower()
    return any(sign in lowered for sign in _ALL_SIGNS)


_ALL_SIGNS: Final = (
    *dict.fromkeys(sign for kind in KINDS.values() for sign in kind.signs),
    *_ESCAPES_OF_SIGNS,
)


# --- Values, JSON and text ----------------------------------------------------------------------------------


def in_value(text: str) -> Iterable[Span]:
    """Find secrets in a value, which may be JSON."""
    if text.lstrip()[:1] in ("{", "[", '"') and is_json(text):
        return in_json(text)
    return in_text(text)


def in_text(text: str) -> Iterator[Span]:
    """Find secrets in text, as it is and with its escapes resolved."""
    lowered = text.lower()
    for signs, kinds in _BY_SIGNS.items():
        if any(sign in lowered for sign in signs):
            for kind in kinds:
                if any(sign in lowered for sign in kind.also):
                    yield from kind.find(text)
    if "\\" in text:
        plain = _unescaped(text)
        if len(plain) < len(text):
            yield from _in_encoded(text, in_text(plain), 0)


def is_json(text: str | bytes) -> bool:
    """Whether a text as a whole is JSON."""
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
_MEANT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _meant(escape: re.Match[str]) -> str:
    """Give the one character that an escape stands for."""
    character = escape["character"]
    if character:
        return _MEANT.get(character, character)
    if escape["high"]:
        return chr(0x10000 + ((int(escape["high"], 16) & 0x3FF) << 10) + (int(escape["low"], 16) & 0x3FF))
    return chr(int(escape["u"] or escape["x"], 16))


def _unescaped(encoded: str) -> str:
    """Resolve the escapes of a JSON string's content, or those there are in other text, once."""
    if "\\" not in encoded:
        return encoded
    try:
        return cast("str", orjson.loads(f'"{encoded}"'))  # the same, many times as fast
    except ValueError:
        return _ESCAPE.sub(_meant, encoded)


def _in_encoded(encoded: str, found: Iterable[Span], offset: int) -> Iterator[Span]:
    """Give spans of unescaped text as spans of a text in which its encoded form begins at an offset."""
    found = list(found)
    escapes = list(_ESCAPE.finditer(encoded)) if found else []
    shifts = [0, *accumulate(len(escape[0]) - 1 for escape in escapes)]
    positions = [escape.start() - shift for escape, shift in zip(escapes, shifts, strict=False)]
    for start, end, mark in found:
        yield Span(
            offset + start + shifts[bisect_left(positions, start)],
            offset + end + shifts[bisect_left(positions, end)],
            mark,
        )


_TOKEN = re.compile(r'"(?P<string>[^"\\]*(?:\\.[^"\\]*)*)"?(?P<colon>\s*:)?|[\[\]{}]', re.DOTALL)
_PAIR_ENDS = re.compile(r"\s*\]")
_NO_TEXT = ("intValue", "doubleValue", "bytesValue")
"""Members of an OTLP value that are strings and no text: numbers, and bytes in base64."""


class _Container:
    """An object or array that is open while JSON is read."""

    __slots__ = (
        "begins_telling",
        "follows_option",
        "hidden",
        "is_named",
        "key",
        "redacted_keys",
        "value_begins",
        "value_ends",
    )

    def __init__(self, hidden: bool = False) -> None:
        self.hidden = hidden
        """All text in it is secret."""
        self.key = ""
        """Of the member that comes next."""
        self.is_named = False
        """Its member ``name`` or ``key`` is a telling name, of what is in its member ``value``."""
        self.value_begins = self.value_ends = 0
        """How many strings of the JSON come before its member ``value``, and up to that member's end."""
        self.begins_telling: bool | None = None
        """An array of which one string is read, a telling name: that of the second if there are but two."""
        self.follows_option = False
        """The string before in an array is a command-line option, whose value is secret."""
        self.redacted_keys = 0

    def hides_next(self) -> bool:
        """Whether the value that comes next is secret."""
        return self.hidden or (self.is_named and self.key.lower() == "value") or is_telling(self.key)


def in_json(text: str, is_line: bool = False) -> Iterator[Span]:
    """Find secrets in the strings of JSON, and all strings that stand under a telling name.

    Args:
        text: JSON.
        is_line: it is OTLP/JSON, in which numbers and bytes may be strings.
    """
    here, around = _Container(), []
    strings: list[Span] = []
    named_late: list[tuple[int, int]] = []
    for token in _TOKEN.finditer(text):
        opened_or_closed = token[0]
        if token["string"] is not None:
            if token["colon"]:
                _end_value(here, len(strings))
                yield from _in_key(token, here)
                if here.key.lower() == "value":
                    here.value_begins = here.value_ends = len(strings)
            elif not (is_line and here.key in _NO_TEXT):
                was_named = here.is_named
                strings.append(Span(*token.span("string")))
                _end_value(here, len(strings))
                yield from _in_string(token, here)
                if here.is_named and not was_named and here.value_ends > here.value_begins:
                    named_late.append((here.value_begins, here.value_ends))
        elif opened_or_closed in "[{":
            around.append(here)
            here = _Container(here.hides_next())
        elif around:
            here = around.pop()
            _end_value(here, len(strings))
            here.key = ""
    yield from _strings_within(strings, named_late)


def _end_value(here: _Container, strings: int) -> None:
    """Note how many strings there are at the end of a member ``value``."""
    if here.key.lower() == "value":
        here.value_ends = strings


def _strings_within(strings: list[Span], ranges: list[tuple[int, int]]) -> Iterator[Span]:
    """Give the strings in ranges of their numbers, each once; an empty string is no secret."""
    done = 0
    for first, end in sorted(ranges):
        yield from (span for span in strings[max(first, done) : end] if span.start < span.end)
        done = max(done, end)


def _in_key(token: re.Match[str], here: _Container) -> Iterator[Span]:
    """Find secrets in a key; keys of one object stay different."""
    encoded = token["string"]
    here.key = _unescaped(encoded)
    if not may_hold_secrets(encoded):
        return
    found = list(_in_encoded(encoded, in_value(here.key), token.start("string")))
    yield from found
    if found:
        here.redacted_keys += 1
        if here.redacted_keys > 1:
            end = token.end("string")
            yield Span(end, end, f" {here.redacted_keys}")


def _in_string(token: re.Match[str], here: _Container) -> Iterable[Span]:
    """Find secrets in a string that is no key."""
    encoded = token["string"]
    start, end = token.span("string")
    is_hidden = (
        here.hides_next()
        or (here.follows_option and not encoded.startswith("-"))
        or (here.begins_telling and _PAIR_ENDS.match(token.string, token.end()))
    )
    key, here.key = here.key, ""
    here.follows_option = not key and encoded[:1] == "-" and _IS_OPTION.fullmatch(encoded) is not None
    if is_hidden:
        return [Span(start, end)] if start < end else ()
    if key.lower() in ("name", "key") and not here.is_named:
        here.is_named = is_telling(_unescaped(encoded))
    if here.begins_telling is None:
        here.begins_telling = not key and is_telling(_unescaped(encoded))
    elif here.begins_telling:
        here.begins_telling = False
    return _in_encoded(encoded, in_value(_unescaped(encoded)), start) if may_hold_secrets(encoded) else ()
