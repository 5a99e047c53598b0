"""Describe each kind of secret: its pattern, and the secret part of a match.

Every pattern takes at most linear time, because a caller waits and nothing can interrupt a regular
expression. tests/recording/test_regular_expressions.py checks that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from otel_rollout.base.redaction_names import MARK


class TextSpan(NamedTuple):
    """A range of a text, and the mark that replaces it."""

    start: int
    end: int
    mark: str = MARK


class SecretKind(NamedTuple):
    """One kind of secret.

    Attributes:
        signs: lower-case texts. Every text with such a secret contains at least one of them.
        pattern: matches text that may hold such a secret.
        secret: returns the secret part of a match, or None.
        more_signs: lower-case texts. Every text with such a secret contains at least one of these, too.
    """

    signs: tuple[str, ...]
    pattern: re.Pattern[str]
    secret: Callable[[re.Match[str]], TextSpan | None]
    more_signs: tuple[str, ...] = ("",)

    def find(self, text: str) -> Iterator[TextSpan]:
        """Find the secrets of this kind in a text."""
        for match in self.pattern.finditer(text):
            span = self.secret(match)
            if span is not None:
                yield span


# --- Names of secrets, and the values assigned to them ------------------------------------------------------

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
_SECRET_NAME = re.compile(NAME + r"[a-z0-9_. -]{0,16}\Z", re.IGNORECASE | re.ASCII)
_MAX_NAME_CHARS = 128
"""Number of last characters of a name that are searched."""

_BACKSLASH = r"\\(?![nrtu\"'\\/])"
"""A backslash that does not begin an escape."""
_VALUE = (
    # A quoted value, which ends with its line if the closing quote is missing; or a value without quotes.
    r"(?:[bruf]{0,2}(?:"
    r'"""(?P<triple>.*?)"""|'
    r"'''(?P<triple_single>.*?)'''|"
    r'"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|'
    r"'(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'|"
    r"`(?P<back>[^`]*)`|"
    r"[\"'`](?P<open>[^\n\r]*))|"
    # Strings in brackets, as Python shows a list, tuple, set or dict, up to the closing bracket.
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


def is_secret_name(name: str) -> bool:
    """Return whether a value with this name is a secret."""
    return _SECRET_NAME.search(name[-_MAX_NAME_CHARS:]) is not None


def _assigned(match: re.Match[str]) -> TextSpan | None:
    """Return the value that is assigned to a name."""
    group = next((name for name in _QUOTED if match[name] is not None), "plain")
    start, end = match.span(group)
    return TextSpan(start, end) if start < end and (group != "plain" or _is_a_value(match)) else None


def _is_a_value(match: re.Match[str]) -> bool:
    """Return whether text without quotes is a value, rather than prose or code."""
    if match["operator"] == "==":
        return False
    if match["operator"] != ":" or match["scheme"]:
        return True
    return _ENDS_HERE.match(match.string, match.end()) is not None and not _TYPES.fullmatch(match["plain"])


# --- Names and values of command lines, XML, URLs and pairs -------------------------------------------------

_QUOTED_NAME = rf"[\"'][a-z0-9_. -]{{0,32}}?{NAME}[a-z0-9_. -]{{0,16}}[\"']"
_STRING = r"(?:\"(?P<double>[^\"\\]*(?:\\.[^\"\\]*)*)%s|'(?P<single>[^'\\]*(?:\\.[^'\\]*)*)%s)"
"""A quoted string. Each ``%s`` is for a pattern that follows the string's text."""

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
IS_OPTION = re.compile(_OPTION_NAME, re.IGNORECASE | re.ASCII)
_FOLLOWS_OPTION_IN_PROSE = re.compile(
    rf"-.*|(?:{NAME}|token|options?|flags?|arguments?|parameters?|switch|value|and|are|as|at|can|for|from|has|"
    r"if|in|instead|is|may|must|of|on|or|should|that|the|to|was|were|when|will|with|without)?[.:!?)\]}]*",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
_PARTS = ("double", "single", "quoted", "quoted_single", "plain")


def _of_option(match: re.Match[str]) -> TextSpan | None:
    """Return a command-line option's value; None if an option or prose follows."""
    groups = match.groupdict()
    part = next(name for name in _PARTS if groups.get(name) is not None)
    return (
        None
        if not groups[part] or _FOLLOWS_OPTION_IN_PROSE.fullmatch(groups[part])
        else TextSpan(*match.span(part))
    )


_NAME_MEMBER = (
    r"(?:name(?<![a-z0-9_]name)|key(?<![a-z0-9_]key))[\"']?\s{0,16}[:=]\s{0,16}"
    rf"[\"']?[a-z0-9_. -]{{0,32}}?{NAME}[a-z0-9_.-]{{0,16}}(?:[\"']|(?=\s|,))"
)
_VALUE_MEMBER = r"(?<![a-z0-9_])value[\"']?\s{0,16}[:=]\s{0,16}"
_BETWEEN = r"\s{0,16}[,;]?\s{0,32}[\"']?"
_PAIR_ENDS = r"\s{0,16},?\s{0,16}(?:[)\]…]|\Z)"
"""What follows the last quote of a pair, which a limit may have cut."""


def _of_group(*names: str | int) -> Callable[[re.Match[str]], TextSpan | None]:
    """Return a function that returns the first nonempty group of a match."""

    def secret(match: re.Match[str]) -> TextSpan | None:
        return next((TextSpan(*match.span(name)) for name in names if match[name]), None)

    return secret


def _named_value(match: re.Match[str]) -> TextSpan | None:
    """Return the value that stands beside a name."""
    span = _of_group(*_QUOTED, "plain")(match)
    return None if match["plain"] and _TYPES.fullmatch(match["plain"]) else span


_PERCENT = "%(?:25){0,3}"
"""Beginning of an escape in a URL that was encoded up to four times."""
_KINDS_BY_NAME: Final = {
    "assignment": SecretKind(_NAME_SIGNS, _ASSIGNMENT, _assigned),
    "option": SecretKind(_NAME_SIGNS, _OPTION, _of_option, ("-",)),
    "option of a token": SecretKind(("-token", "_token"), _OPTION, _of_option),
    "element": SecretKind(
        _NAME_SIGNS,
        re.compile(
            rf"<[a-z0-9_.:-]{{0,64}}?{NAME}[a-z0-9_.-]{{0,16}}(?:\s[^<>]{{0,256}})?>\s{{0,16}}"
            r"(?:<!\[CDATA\[(.*?)(?:\]\]>|\Z)|([^<]*)(?=<(?:[/…]|\Z))|([^<\s…]+)(?=\s{0,16}(?:…|\Z)))",
            _FLAGS,
        ),
        _of_group(1, 2, 3),
        ("<",),
    ),
    "URL-encoded": SecretKind(
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
    "pair": SecretKind(
        _NAME_SIGNS,
        re.compile(
            rf"[(\[]\s{{0,16}}[bru]{{0,2}}{_QUOTED_NAME}\s{{0,16}},\s{{0,16}}[bruf]{{0,2}}(?:"
            + _STRING % (rf"(?:\"{_PAIR_ENDS}|\Z)", rf"(?:'{_PAIR_ENDS}|\Z)")
            + r"|[\"'](?P<cut>[^\n\r\"'…]*)(?=…))",
            _FLAGS,
        ),
        _of_group("double", "single", "cut"),
        ("',", '",'),
    ),
    "name and value": SecretKind(
        _NAME_SIGNS,
        re.compile(_NAME_MEMBER + _BETWEEN + _VALUE_MEMBER + _VALUE, _FLAGS),
        _named_value,
        ("value",),
    ),
    "value and name": SecretKind(
        _NAME_SIGNS,
        re.compile(_VALUE_MEMBER + "[bruf]{0,2}" + _STRING % ('"', "'") + _BETWEEN + _NAME_MEMBER, _FLAGS),
        _of_group("double", "single"),
        ("value",),
    ),
}
"""Secrets that are known by the name beside them."""


# --- Secrets that are known by their own form ---------------------------------------------------------------

_WORD_BEGINS = r"(?:(?<![A-Za-z0-9])|(?<=[0-9;\[]m)|(?<=%[0-9A-Fa-f]{2}))"
"""Beginning of a word. A terminal's colour codes (``\\x1b[32m``) and URL escapes (``%20``) end a word."""
_NOT_IN_URL = r"/\s\"'`<>…"
_NAME_IN_URL = rf"[^:@\[\]{_NOT_IN_URL}]"
_PEM = r"-{4,5} ?%s [A-Z0-9 ]{0,40}PRIVATE KEY"


def _rest(character: str, shortest: int, like_a_word: bool = False) -> str:
    """Match the rest of a key, even if a limit has cut the key.

    Our own limits leave an ellipsis. The limits of OpenTelemetry's SDK leave no mark, so the end of any text
    may be a cut. At such an end, text that looks like a word (``hf_datasets``) is a key only if it has a
    digit.
    """
    is_key = f"(?={character}*[0-9])" if like_a_word else ""
    return f"(?:{character}{{{shortest},}}|{character}+(?=…)|{is_key}{character}{{8,}}\\Z)"


def _kind(
    *signs: str, pattern: str, flags: int = 0, group: str | int = 0, needs: str | int = 0
) -> SecretKind:
    """Return a kind whose secret is ``group`` of the pattern.

    There is a secret only if group ``needs`` matched.
    """

    def secret(match: re.Match[str]) -> TextSpan | None:
        return TextSpan(*match.span(group)) if match[needs] is not None else None

    return SecretKind(signs, re.compile(pattern, flags | re.ASCII), secret)


KINDS: Final = {
    **_KINDS_BY_NAME,
    # Two numbers are the ids of a user and a group, as arguments of other programs.
    "curl": SecretKind(
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
        "bearer", pattern=rf"bearer\s{{1,64}}({_rest('[a-z0-9._~+/-]', 16)}=*)", flags=re.IGNORECASE, group=1
    ),
    "OpenAI and Anthropic": _kind("sk-", pattern=_WORD_BEGINS + "sk-" + _rest("[A-Za-z0-9_-]", 20, True)),
    "AWS": _kind("akia", "asia", pattern="(?:AKIA|ASIA)" + _rest("[0-9A-Z]", 16)),
    "GitHub": _kind("ghp_", "gho_", "ghu_", "ghs_", "ghr_", pattern="gh[pousr]_" + _rest("[A-Za-z0-9]", 36)),
    "GitHub, fine-grained": _kind("github_pat_", pattern="github_pat_" + _rest("[A-Za-z0-9_]", 22)),
    "GitLab": _kind("glpat-", pattern="glpat-" + _rest("[A-Za-z0-9_-]", 20)),
    "Hugging Face": _kind("hf_", pattern="hf_" + _rest("[A-Za-z0-9]", 30, True)),
    "Slack": _kind("xox", pattern="xox[abprs]-" + _rest("[A-Za-z0-9-]", 10)),
    "Google": _kind("aiza", pattern=_WORD_BEGINS + "AIza" + _rest("[0-9A-Za-z_-]", 35)),
    # Match the whole first part, so that no further attempt begins inside it.
    "JSON Web Token": _kind(
        "eyj",
        pattern=r"eyJ[A-Za-z0-9_-]+"
        r"(?P<more>(?:\.[A-Za-z0-9_-]*){2,4}|\.[A-Za-z0-9_-]{4,}(?=…|\Z)|(?=…))?",
        needs="more",
    ),
    # If the end of the key is missing, the secret ends with the text. If the beginning is missing, the secret
    # begins with the earliest possible line.
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
    # If the middle of a long text is left out, the rest of that line may be the end of any secret.
    "line cut by a limit": _kind(
        "more characters) …", pattern=rf"more characters\) …((?:[^\r\n\\]|{_BACKSLASH}){{1,2048}})", group=1
    ),
}
"""All kinds of secrets, by name."""
