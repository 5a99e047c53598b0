"""Redaction: no secret survives, wherever it stands; nothing else changes; and it takes linear time."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import NamedTuple

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from otel_rollout.record import otlp_json, redaction
from otel_rollout.record.redaction import redact_secrets

READABLE = 7
"""Characters of a secret that may be left together."""


class Secret(NamedTuple):
    """Text with a secret in it, and what of it must not be read."""

    text: str
    hidden: str
    ends_by_itself: bool = True
    """What follows without a space or a quote is not taken for part of it."""


BODY = "a1B2c3D4e5F6g7H8i9J0"
PEM_BODY = "MIIEowIBAAKCAQEA1c7\nq2w3e4r5t6y7u8i9o0\nAbCd="
SECRETS = {
    "openai": Secret(f"sk-{BODY}", BODY),
    "openai project": Secret(f"sk-proj-{BODY}", BODY),
    "anthropic": Secret(f"sk-ant-api03-{BODY}", BODY),
    "aws": Secret("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
    "aws temporary": Secret("ASIAIOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
    "github": Secret(f"ghp_{BODY}{BODY}", BODY),
    "github server": Secret(f"ghs_{BODY}{BODY}", BODY),
    "github fine-grained": Secret(f"github_pat_{BODY}_{BODY}", BODY),
    "gitlab": Secret(f"glpat-{BODY}", BODY),
    "hugging face": Secret(f"hf_{BODY}{BODY}", BODY),
    "slack": Secret("xoxb-1234567890-abcdef12", "1234567890-abcdef12"),
    "google": Secret("AIza" + "b1C" * 11 + "xy", "b1C" * 11),
    "json web token": Secret(f"eyJhbGciOiJIUzI1NiJ9.eyJ{BODY}.{BODY}", f"eyJ{BODY}.{BODY}"),
    "bearer": Secret(f"Bearer {BODY}", BODY),
    "basic": Secret("Authorization: Basic dXNlcjpodW50ZXIy", "dXNlcjpodW50ZXIy", False),
    "url": Secret(f"postgresql://user:{BODY}@db/x", BODY),
    "url without a user": Secret(f"redis://:{BODY}@host", BODY),
    "variable": Secret(f"DB_PASSWORD={BODY}", BODY, False),
    "variable, spaced": Secret(f"aws_secret_access_key = {BODY}", BODY, False),
    "double quotes": Secret(f'password="{BODY} and more"', f"{BODY} and more"),
    "single quotes": Secret(f"password: '{BODY} and more'", f"{BODY} and more"),
    "header": Secret(f"X-Api-Key: {BODY}", BODY, False),
    "json": Secret(f'{{"api_key": "{BODY} x"}}', f"{BODY} x"),
    "pem": Secret(f"-----BEGIN RSA PRIVATE KEY-----\n{PEM_BODY}\n-----END RSA PRIVATE KEY-----", PEM_BODY),
    "pem with quotes": Secret(
        '-----BEGIN PRIVATE KEY-----\\n" +\n  "MIIEowIBAAKCAQEA1c7\\n" +\n"-----END PRIVATE KEY-----',
        "MIIEowIBAAKCAQEA1c7",
    ),
    "pem of pgp": Secret(
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{PEM_BODY}\n-----END PGP PRIVATE KEY BLOCK-----", PEM_BODY
    ),
    "pem of ssh": Secret(
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{PEM_BODY}\n-----END OPENSSH PRIVATE KEY-----", PEM_BODY
    ),
}
BEFORE = [
    "",
    "key:\n",
    "key:\t",
    "key:\r\n",
    "\x00",
    "\x1b[32m",
    '"',
    "'",
    "(",
    "[",
    "{",
    "<",
    "=",
    ": ",
    "，",
    "é",
]
BEFORE += ["🙂", "\\", "/", "`", "%20", "\u2028", "\x0c", "\b", "日本", "a, ", '{"', "[\n"]
AFTER = ["\n", "\r\n", '"', "'", ", ", "。", "\x1b[0m", " ", "\t", "`", "", ")", "]", "}", "<", "\\"]
AFTER_OTHERS = ["\n", "\r\n", '"', "'", ", ", ";", ""]
"""What may follow a secret that only these end."""


def escaped_slashes(value: object) -> str:
    """JSON as PHP writes it."""
    return json.dumps(value).replace("/", "\\/")


def escaped_more(value: object) -> str:
    """JSON as .NET writes it."""
    text = json.dumps(value)
    return "".join(
        f"\\u{ord(c):04x}" if c in "+&<>'=:" and i not in (0, 4) else c for i, c in enumerate(text)
    )


def wholly_escaped(value: str) -> str:
    """A JSON string of nothing but escapes."""
    units = value.encode("utf-16-be")
    return '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)) + '"'


NESTINGS: dict[str, Callable[[str], str]] = {
    "object": lambda text: json.dumps({"a": 1e22, "b": text, "c": 1 << 70}),
    "orjson": lambda text: orjson.dumps({"a": [1, text, None]}).decode(),
    "unicode": lambda text: json.dumps([text, "é"], ensure_ascii=False),
    "key": lambda text: json.dumps({text: {"x": [True]}}, indent=2),
    "string": json.dumps,
    "prose": lambda text: f"Observation: {json.dumps({'stdout': text})} and so on",
    "cut": lambda text: json.dumps({"stdout": text, "more": [1, 2]})[:-4],
    "slashes": lambda text: escaped_slashes([text]),
    "escapes": lambda text: f"[{wholly_escaped(text)}]",
    "repr": lambda text: repr({"stdout": text, "n": 1}),
    "bytes": lambda text: repr(text.encode("ascii", "replace")),
    "fenced": lambda text: f"```json\n{json.dumps({'x': text}, indent=1)}\n```",
    "lines": lambda text: f"{json.dumps({'x': 1})}\n{json.dumps({'x': text})}\n",
}


def line_with(text: str, where: str = "attribute") -> bytes:
    """A line as it is recorded, with a text in one of its places."""
    attributes = otlp_json.attribute_list({"note": text if where == "attribute" else "", "n": 1e22, "m": 7})
    details = otlp_json.Details(status=2, status_message=text if where == "status" else "failed")
    exception = {
        "exception.message": text if where == "exception" else "no",
        "k": [text] if where == "list" else 1,
    }
    details.events.append(otlp_json.event(text if where == "event" else "exception", 1, exception))
    details.links.append(otlp_json.link(1, 2, "", 0, {"to": text if where == "link" else "", "b": True}))
    scope = otlp_json.scope_head("tests", "1", {"of": text} if where == "scope" else None, None)
    head = otlp_json.head_below(b"a" * 32, b"b" * 16, 1)
    name = otlp_json.json_string(text if where == "name" else "op")
    return b"".join(otlp_json.line(scope, head, b"c" * 16, name, 1, 1, 2, [attributes], details.encoded()))


PLACES = ["attribute", "status", "exception", "list", "event", "link", "scope", "name"]


def is_readable(hidden: str, text: str) -> bool:
    """Whether more than a few characters of a secret are in a text."""
    length = READABLE + 1
    return any(hidden[i : i + length] in text for i in range(len(hidden) - length + 1))


def decoded(line: bytes) -> str:
    """All that a line says, at any depth."""
    texts = [line.decode()]
    while "\\" in texts[-1]:
        plain = re.sub(r"\\(?:u([0-9a-f]{4})|x([0-9a-f]{2})|(.))", resolved, texts[-1], flags=re.DOTALL)
        texts.append(plain)
    return "\n".join(texts)


def resolved(escape: re.Match[str]) -> str:
    """The character that an escape stands for."""
    digits = escape[1] or escape[2]
    return chr(int(digits, 16)) if digits else {"n": "\n", "t": "\t", "r": "\r"}.get(escape[3], escape[3])


def check_redacted(original: bytes, hidden: str) -> None:
    """Insist that a line's secret is gone, and that all that stands around it is there, byte by byte."""
    redacted = redact_secrets(original)
    assert not is_readable(hidden, decoded(redacted)), redacted
    before, mark, after = redacted.partition(b"[redacted]")
    assert mark
    assert original.startswith(before), redacted
    assert original.endswith(after), redacted


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(SECRETS)),
    st.sampled_from(BEFORE),
    st.sampled_from(AFTER),
    st.lists(st.sampled_from(sorted(NESTINGS)), max_size=4),
    st.sampled_from(PLACES),
)
def test_no_secret_survives_anywhere(
    kind: str, before: str, after: str, nestings: list[str], where: str
) -> None:
    """Every kind of key, in every surrounding, in JSON within JSON, on every part of a span."""
    secret = SECRETS[kind]
    if not secret.ends_by_itself and after not in AFTER_OTHERS:
        after = "\n"
    text = f"{before}{secret.text}{after}"
    for nesting in nestings:
        text = NESTINGS[nesting](text)
    check_redacted(line_with(text, where), secret.hidden)
