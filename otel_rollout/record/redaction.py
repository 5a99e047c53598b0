"""Making secrets unreadable in a line before it is written anywhere.

Lines are looked at as text, JSON within JSON, where quotes are escaped once or more often. What replaces a
secret has no quotes, so that a line stays a line.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Final

import orjson

Redaction = Callable[[bytes], bytes]
MARK: Final = b"[redacted]"
SHIPPED: Final = "secrets"

_BEFORE: Final = b'{"resourceSpans":[{"scopeSpans":[{'
"""What a line given without its resource lacks to be JSON."""
_NAME = (
    rb"(?:password|passwd|secret(?:[_-]?key)?|api[_-]?key|access[_-]?key|(?:access|auth|refresh)[_-]token"
    rb"|authorization)"
)
_KEY = rb"[a-z0-9_.-]{0,64}?" + _NAME + rb"[a-z0-9_.-]{0,16}"
# Every pattern looks at a character a bounded number of times: lines are long, and somebody waits.
_PATTERNS: Final = (
    # An attribute with a telling name; such an entry of JSON in an attribute; of JSON in that JSON.
    re.compile(rb'(?i)("key":"' + _KEY + rb'","value":\{"stringValue":")(?:[^"\\]|\\.)+'),
    re.compile(rb'(?i)(\\"' + _KEY + rb'\\"\s{0,4}:\s{0,4}\\")(?:[^"\\]|\\\\(?:\\\\|\\"|[a-z/]))+'),
    re.compile(rb'(?i)((?<!\\)(\\{3,15})"' + _KEY + rb'\2"\s{0,4}:\s{0,4}\2")[^"\\]+'),
    # In text: DB_PASSWORD=…
    re.compile(rb"(?i)((?<![a-z0-9])" + _NAME + rb'=)[^\s"\\&,;]+'),
    re.compile(rb"(?i)(\bbearer\s+)[a-z0-9._~+/-]{16,}=*"),
    re.compile(rb'(://[^/\s:@"\\]{1,256}:)[^/\s"\\]{1,256}(?=@)'),
    # Keys that say themselves what they are: OpenAI and Anthropic, AWS, GitHub, GitLab, Hugging Face, Slack,
    # Google, JSON Web Tokens, private keys in PEM.
    re.compile(rb"()\bsk-(?:[a-z]+-)*[A-Za-z0-9_-]{20,}"),
    re.compile(rb"()\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    re.compile(rb"()\bgh[pousr]_[A-Za-z0-9]{36,}"),
    re.compile(rb"()\bgithub_pat_[A-Za-z0-9_]{22,}"),
    re.compile(rb"()\bglpat-[A-Za-z0-9_-]{20,}"),
    re.compile(rb"()\bhf_[A-Za-z0-9]{30,}"),
    re.compile(rb"()\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    re.compile(rb"()\bAIza[0-9A-Za-z_-]{35}"),
    re.compile(rb"()\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"),
    re.compile(rb'()-----BEGIN [A-Z ]*PRIVATE KEY-----[^"]*?-----END [A-Z ]*PRIVATE KEY-----'),
)


def redaction_of(names: str) -> Redaction | None:
    """What lines go through, as named by ``OTEL_ROLLOUT_REDACT``; None: nothing.

    Raises:
        ValueError: for a function that cannot be found. Recording without it is not what was asked for.
    """
    steps = [_step(name.strip()) for name in names.split(",") if name.strip()]
    if not steps:
        return None

    def redact(line: bytes) -> bytes:
        for step in steps:
            line = step(line)
        return line

    return redact


def _step(name: str) -> Redaction:
    return redact_secrets if name == SHIPPED else _of_the_application(name)


def redact_secrets(line: bytes) -> bytes:
    """Replace what looks like a key, a token or a password."""
    for pattern in _PATTERNS:
        line = pattern.sub(rb"\1" + MARK, line)
    return line


def _of_the_application(name: str) -> Redaction:
    module, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"OTEL_ROLLOUT_REDACT={name!r}: there is no such function ({error}); give `secrets` or "
            "module:function, importable in every process"
        ) from error

    def redact(line: bytes) -> bytes:
        changed = function(line.decode()).encode()
        orjson.loads(_BEFORE + changed)
        if b"\n" in changed[:-1]:
            raise ValueError("a line has to stay one line")
        return bytes(changed)

    return redact
