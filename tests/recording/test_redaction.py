"""Redaction removes every secret and nothing else, in linear time."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from otel_rollout.otlp import model_calls, writer
from otel_rollout.otlp.json_line import HEAD_WITHOUT_RESOURCE, spans_of_json
from otel_rollout.redaction import redaction, secret_patterns
from otel_rollout.redaction.secret_finder import redact_secrets

ROOT = Path(__file__).parents[2]
READABLE = 7
"""Characters of a secret that may stay in a row."""


class Secret(NamedTuple):
    """Text with a secret, and the part that must not be readable."""

    text: str
    hidden: str
    ends_by_itself: bool = True
    """Text that follows without a space or a quote does not count as part of the secret."""


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
    "option": Secret(f"mysql --password {BODY}", BODY, False),
    "option with =": Secret(f"deploy --token={BODY}", BODY, False),
    "option, dashed": Secret(f"run --openai-api-key {BODY}", BODY, False),
    "option in quotes": Secret(f'login --password "{BODY} and more"', f"{BODY} and more"),
    "option in a list": Secret(f"['mysql', '--password', '{BODY}', '-v']", BODY),
    "curl": Secret(f"curl -s -u admin:{BODY}", BODY, False),
    "curl in quotes": Secret(f"curl https://x -su 'admin:{BODY} more'", f"{BODY} more"),
    "curl, long": Secret(f"curl --user=admin:{BODY}", BODY, False),
    "element": Secret(f"<password>{BODY}</password>", BODY),
    "element with attributes": Secret(f'<ns:apiKey type="text">\n  {BODY}\n</ns:apiKey>', BODY),
    "element with a section": Secret(f"<Password><![CDATA[{BODY}<x>]]></Password>", BODY),
    "XML attribute": Secret(f'<user name="a" password="{BODY}"/>', BODY),
    "XML name and value": Secret(f'<property name="db.password" value="{BODY}"/>', BODY),
    "form": Secret(f"grant=x&api_key={BODY}&scope=y", BODY),
    "URL-encoded": Secret(f"password%3D{BODY}%26scope%3Dy", BODY, False),
    "URL-encoded JSON": Secret(f"%7B%22password%22%3A%20%22{BODY}%22%7D", BODY, False),
    "URL-encoded twice": Secret(f"password%253D{BODY}%2526scope", BODY, False),
    "pair": Secret(f"('password', '{BODY} x')", f"{BODY} x"),
    "pair in a list": Secret(f"[('user', 'a'), ('X-Api-Key', b'{BODY}')]", BODY),
    "name and value": Secret(f"{{'name': 'password', 'value': '{BODY} x'}}", f"{BODY} x"),
    "value and name": Secret(f"{{'value': '{BODY} x', 'key': 'api_key'}}", f"{BODY} x"),
    "name and value in YAML": Secret(f"- name: DB_PASSWORD\n  value: {BODY}", BODY, False),
    "name and value of a call": Secret(f"Variable(name='DB_PASSWORD', value='{BODY}')", BODY),
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
BEFORE += ["<x>", "<x y='", "%3D", "x=1&y=", "('x', '", "--key ", "cmd --key=", "$(", "&lt;x&gt;"]
AFTER = ["\n", "\r\n", '"', "'", ", ", "。", "\x1b[0m", " ", "\t", "`", "", ")", "]", "}", "<", "\\"]
AFTER += ["</x>", "'/>", "&x=1", "%26x%3D1", "')", " --verbose", ";"]
AFTER_OTHERS = ["\n", "\r\n", '"', "'", ", ", ";", ""]
"""Texts that end the secret before them."""


def escaped_slashes(value: object) -> str:
    """Encode JSON as PHP does."""
    return json.dumps(value).replace("/", "\\/")


def escaped_more(value: object) -> str:
    """Encode JSON as .NET does."""
    text = json.dumps(value)
    return "".join(
        f"\\u{ord(c):04x}" if c in "+&<>'=:" and i not in (0, 4) else c for i, c in enumerate(text)
    )


def wholly_escaped(value: str) -> str:
    """Encode a JSON string with escapes only."""
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
    """Return a recorded line with a text in one of its parts."""
    attributes = writer.attribute_list({"note": text if where == "attribute" else "", "n": 1e22, "m": 7})
    details = writer.Details(status=2, status_message=text if where == "status" else "failed")
    exception = {
        "exception.message": text if where == "exception" else "no",
        "k": [text] if where == "list" else 1,
    }
    details.events.append(writer.event(text if where == "event" else "exception", 1, exception))
    details.links.append(writer.link(1, 2, "", 0, {"to": text if where == "link" else "", "b": True}))
    scope = writer.scope_head("tests", "1", {"of": text} if where == "scope" else None, None)
    head = writer.head_below(b"a" * 32, b"b" * 16, 1)
    name = writer.json_string(text if where == "name" else "op")
    return b"".join(writer.line(scope, head, b"c" * 16, name, 1, 1, 2, [attributes], details.encoded()))


PLACES = ["attribute", "status", "exception", "list", "event", "link", "scope", "name"]


def is_readable(hidden: str, text: str) -> bool:
    """Return whether a text has more than a few characters of a secret."""
    length = READABLE + 1
    return any(hidden[i : i + length] in text for i in range(len(hidden) - length + 1))


def decoded(line: bytes) -> str:
    """Return all text of a line, at any depth."""
    texts = [line.decode()]
    while "\\" in texts[-1]:
        plain = re.sub(r"\\(?:u([0-9a-f]{4})|x([0-9a-f]{2})|(.))", resolved, texts[-1], flags=re.DOTALL)
        texts.append(plain)
    return "\n".join(texts)


def resolved(escape: re.Match[str]) -> str:
    """Return the character that an escape stands for."""
    digits = escape[1] or escape[2]
    return chr(int(digits, 16)) if digits else {"n": "\n", "t": "\t", "r": "\r"}.get(escape[3], escape[3])


def check_redacted(original: bytes, hidden: str) -> None:
    """Check that a line's secret is gone, and that all other text is unchanged."""
    redacted = redact_secrets(original)
    assert not is_readable(hidden, decoded(redacted)), redacted
    before, mark, after = redacted.partition(b"[redacted]")
    assert mark
    assert original.startswith(before), redacted
    assert original.endswith(after), redacted


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(SECRETS)),
    st.sampled_from(BEFORE),
    st.sampled_from(AFTER),
    st.lists(st.sampled_from(sorted(NESTINGS)), max_size=4),
    st.sampled_from(PLACES),
)
def test_secret_is_redacted_in_any_surroundings(
    kind: str, before: str, after: str, nestings: list[str], where: str
) -> None:
    """Every kind of key, in JSON within JSON, on every part of a span."""
    secret = SECRETS[kind]
    if not secret.ends_by_itself and after not in AFTER_OTHERS:
        after = "\n"
    text = f"{before}{secret.text}{after}"
    for nesting in nestings:
        text = NESTINGS[nesting](text)
    check_redacted(line_with(text, where), secret.hidden)


CUTS = [kind for kind in SECRETS if kind not in ("json", "pem with quotes", "value and name")]
IN_A_LINE = [kind for kind in CUTS if kind not in ("element with attributes", "name and value in YAML")]


@given(
    st.sampled_from(CUTS),
    st.sampled_from(["", "x\n", "key: ", '{"a": "']),
    st.floats(0, 1),
    st.booleans(),
    st.lists(st.sampled_from(["object", "orjson", "prose", "lines"]), max_size=3),
)
@example("pair in a list", "key: ", 0.875, False, ["orjson"])  # the cut is after the last quote
@example("pair in a list", "", 0.96, True, [])
def test_secret_cut_by_a_limit_is_redacted(
    kind: str, before: str, share: float, is_said: bool, nestings: list[str]
) -> None:
    """Our limits mark a cut; limits of an SDK do not."""
    secret = SECRETS[kind]
    text = before + secret.text
    if is_said:
        text = f"{text[: round(share * len(text))]}… (4096 more characters)"
    for nesting in nestings:
        text = NESTINGS[nesting](text)
    if not is_said:
        text = text[: round(share * len(text))]
    redacted = redact_secrets(line_with(text))
    hidden = secret.hidden
    if kind == "json web token":  # a short beginning of it resembles any JSON in base64
        hidden = hidden[READABLE:]
    assert not is_readable(hidden, decoded(redacted)), redacted


@pytest.mark.parametrize("kind", sorted(IN_A_LINE))
def test_text_after_a_cut_in_the_middle_is_redacted(kind: str) -> None:
    """Text after a cut may be the end of any secret."""
    secret = SECRETS[kind]
    for at in range(len(secret.text)):
        text = f"Traceback … (4096 more characters) …{secret.text[at:]}\n  File x, line 1"
        check_unreadable = decoded(redact_secrets(line_with(text)))
        assert "File x, line 1" in check_unreadable
        words = secret.hidden.split() if " " in secret.hidden else [secret.hidden]
        assert not any(is_readable(word, check_unreadable) for word in words), check_unreadable


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=20,
    ),
    st.lists(st.sampled_from(["object", "orjson", "unicode", "string", "slashes", "prose"]), max_size=3),
)
def test_other_text_stays_byte_by_byte(value: object, nestings: list[str]) -> None:
    """Numbers of any size and spelling, the order of keys and duplicates stay."""
    neighbours, text = json.dumps(value), json.dumps({"password": "hunter2 hunter2", "x": value})
    for nesting in nestings:
        neighbours, text = NESTINGS[nesting](neighbours), NESTINGS[nesting](text)
    assert redact_secrets(line_with(neighbours)) == line_with(neighbours)
    check_redacted(line_with(text), "hunter2 hunter2")


@pytest.mark.parametrize(
    "text",
    [
        "def login(password: str, api_key: str | None = None) -> Token:",
        "The secret: be kind to everybody.",
        "task-management-system-with-many-words and risk-assessment-of-a-portfolio",
        "https://localhost:8080/path?x=y@z, mailto:somebody@example.org, ssh://git@github.com/a",
        "eyJpZCI6MX0 is a cursor; keys look like sk-… or hf_… or ghp_…",
        '{"max_tokens": 7, "total_tokens": 9, "token_ids": [1, 2], "secret_found": 1.0, "password": null}',
        "pip install hf_transfer",
        "if password == expected:",
        "C:\\new\\table\\x41\\users",
        '["username", "password", "email"]',
        "['username', 'password', 'email']",
        "the password was wrong; the --password option and the --token flag are required",
        "token count: 12, max_tokens=5, run --max-tokens 5 --tokens 5 --eos-token </s> --pad-token <pad>",
        "parser.add_argument('--password', '-p', help='the password of the database')",
        "mysql --password --user root",
        "usage: login --password PASSWORD --token TOKEN",
        "docker run -u 1000:1000 curlimages/curl https://x",
        "curl -u admin https://localhost:8080/x -H 'Accept: text/plain'",
        "use <password> and <secret> as placeholders, mysql -u <user> -p <password> -h <host>",
        "https://x/?q=password%20policy&next=%2Fhome, 100% secret recipe",
        "loc=('body', 'password'), the name: password is reserved; key: value",
        "{'name': 'user', 'value': 'alice'}, {'name': 'password', 'type': 'str'}",
        '["run", "--max-tokens", "5", "--password", "--token", "-v"]',
        '["run", "--token", 5, "verbose"]',
        '["run", "--token", {"a": 5}, "verbose"]',
        '["password", null, "verbose"]',
    ],
)
def test_text_that_resembles_a_secret_stays(text: str) -> None:
    """Code, prose, paths and numbers with such words are recorded unchanged."""
    assert redact_secrets(line_with(text)) == line_with(text)


@pytest.mark.parametrize(
    "value",
    [
        {"password": ["hunter2hunter2", {"deep": "hunter2hunter2"}]},
        {"API Key": "hunter2hunter2"},
        {"clientSecret": 'hunter2"hunter2'},
        [["Authorization", "hunter2hunter2"]],
        {"env": [{"name": "DB_PASSWORD", "value": "hunter2hunter2"}]},
        {"env": [{"value": "hunter2hunter2", "name": "DB_PASSWORD"}]},
        {"env": [{"value": {"deep": ["hunter2hunter2"]}, "hidden": True, "name": "DB_PASSWORD"}]},
        {"env": [{"Name": "DB_PASSWORD", "Value": "hunter2hunter2"}]},
        {"value": [{"value": "hunter2hunter2", "key": "api_key"}], "key": "password"},
        ["mysql", "--password", "hunter2hunter2", "-v"],
        ["run", "--token", "hunter2hunter2"],
        {"x": json.dumps({"y": json.dumps({"refresh_token": "hunter2hunter2"})})},
    ],
)
@pytest.mark.parametrize("nesting", ["object", "orjson", "string", "slashes"])
def test_all_text_under_a_secret_name_is_redacted(value: object, nesting: str) -> None:
    """Text in lists, objects, pairs and entries with name and value is redacted."""
    redacted = redact_secrets(line_with(NESTINGS[nesting](json.dumps(value))))
    assert b"hunter2" not in redacted


@pytest.mark.parametrize(
    "text",
    [
        "{'password': ['hunter2hunter2', 'hunter2hunter2']}",
        "{'password': ('hunter2hunter2',), 'user': 'alice'}",
        "{'password': {'a': 'hunter2hunter2'}, 'user': 'alice'}",
        'Settings(api_key=["hunter2hunter2"])',
        "{'password': ['hunter2hunter2",
        "{'value': 1, 'secret': [\n  'hunter2hunter2'\n]}",
    ],
)
def test_strings_in_brackets_after_a_secret_name_are_redacted(text: str) -> None:
    """Python shows a list, a tuple or a dict like this in text."""
    assert b"hunter2" not in redact_secrets(line_with(text))


def test_values_beside_other_names_stay() -> None:
    """A value stays, whatever the text before and after it."""
    entries = [{"value": "plain", "name": "user"}, {"name": "password"}, {"value": "plain"}]
    line = line_with(json.dumps(entries))
    assert redact_secrets(line) == line


def test_numbers_under_secret_names_stay_numbers() -> None:
    """A score may have such a name.

    A number that is a string only in OTLP is not touched.
    """
    attributes = {"rollout.score.secret_found": 7, "rollout.score.password": float("nan"), "secret": b"bytes"}
    line = b'"scope":{},"spans":[{"attributes":%b}]}]}]}\n' % writer.attribute_list(attributes)
    assert redact_secrets(line) == line


def test_redacted_keys_of_one_object_stay_distinct() -> None:
    """Two keys that are secrets do not become one, which would lose a value."""
    keys = {f"ghp_{BODY}{BODY}{n}": n for n in range(3)}
    redacted = redact_secrets(line_with(json.dumps(keys)))
    assert rb"{\"[redacted]\": 0, \"[redacted] 2\": 1, \"[redacted] 3\": 2}" in redacted


def test_second_redaction_changes_nothing() -> None:
    """The forwarder redacts detokenized text in lines that were already redacted."""
    for secret in SECRETS.values():
        once = redact_secrets(line_with(f"a {secret.text}\n"))
        assert redact_secrets(once) == once


def test_resource_is_redacted() -> None:
    """Text in the resource's attributes is redacted; numbers and names stay."""
    attributes = {"service.name": "x", "url": f"redis://:{BODY}@host", "n": 5, "db.password": "hunter2"}
    assert redaction.redacted_attributes(redact_secrets, attributes) == {
        "service.name": "x",
        "url": "redis://:[redacted]@host",
        "n": 5,
        "db.password": "[redacted]",
    }


BURNED: list[str] = []
"""Texts that :func:`burn` was called with."""


def burn(text: str) -> str:
    """Redact with a pattern that backtracks, as an application's function may."""
    BURNED.append(text)
    deadline = time.thread_time() + (2 * redaction.BUDGET if "slow" in text else 0)
    while time.thread_time() < deadline:
        pass
    return text


def test_function_beyond_its_budget_costs_content_but_no_span(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line's content is replaced.

    For a while other long lines' content is replaced too, but not that of shorter lines.
    """
    redact = redaction.redaction_of(f"{__name__}:burn")
    assert redact is not None
    assert redact(line_with("quick")) == line_with("quick")
    hidden = orjson.loads(b'{"resourceSpans":[{"scopeSpans":[{' + redact(line_with("slow, classified")))
    assert "classified" not in str(hidden)
    (span,) = hidden["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["name"], span["spanId"]) == ("op", "c" * 16)
    assert "took 0.5 s of processor time" in caplog.text
    assert "for the next 5 s" in caplog.text

    BURNED.clear()
    assert b"classified" not in redact(line_with("slow, classified" * 100))
    assert BURNED == []
    short = b'"scope":{},"spans":[]}]}]}\n'
    assert redact(short) == short

    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert redact(line_with("quick again")) == line_with("quick again")


def shout(text: str) -> str:
    """Redact as an application that reads the line as JSON, and writes it with spaces or in several lines."""
    data = json.loads(text)
    for span in data["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        span["name"] = span["name"].upper()
    return json.dumps(data, indent=2 if "in several lines" in text else None)


@pytest.mark.parametrize("text", ["short", "in several lines"])
def test_function_gets_and_may_return_any_form_of_the_lines_json(text: str) -> None:
    """The line stays a line, and its spans are the changed ones."""
    redact = redaction.redaction_of(f"{__name__}:shout")
    assert redact is not None
    assert redact(line_with(text)) == line_with(text).replace(b'"op"', b'"OP"')


def hide_letters(text: str) -> str:
    """Redact as an application that hides what may be an account, and with it the ids of spans."""
    return re.sub(r"c{9,}", "…", text)


def empty(text: str) -> str:
    """Redact as an application that leaves out spans."""
    data = json.loads(text)
    data["resourceSpans"][0]["scopeSpans"][0]["spans"] = []
    return json.dumps(data)


def retype(text: str) -> str:
    """Redact as an application that names the kind of a span."""
    return text.replace('"kind":1', '"kind":"SPAN_KIND_INTERNAL"')


def fail(text: str) -> str:
    """Redact as an application whose error has what is to be hidden."""
    raise ValueError(text)


@pytest.mark.parametrize(
    "function", ["json:dumps", *(f"{__name__}:{f.__name__}" for f in (hide_letters, empty, retype, fail))]
)
def test_line_whose_spans_a_function_has_broken_is_refused(function: str) -> None:
    """No exporter could read them; the error has nothing of the line, because logs are files, too."""
    redact = redaction.redaction_of(function)
    assert redact is not None
    with pytest.raises(ValueError, match=f"^OTEL_ROLLOUT_REDACT='{function}': [A-Za-z]+$"):
        redact(line_with("quick"))


def test_identity_stays_when_content_is_replaced() -> None:
    """A span without content still belongs to its trajectory."""
    attributes = {"rollout.step": 3, "rollout.experiment_name": "e", "openinference.span.kind": "LLM"}
    more = {"input.value": "classified", "b": b"classified", "l": ["classified"], "m": {"k": "classified"}}
    encoded = writer.attribute_list({**attributes, **more})
    line = b'"scope":{},"spans":[{"attributes":%b}]}]}]}\n' % encoded
    hidden = redaction.without_content(line)
    assert b"classified" not in hidden
    assert b"Y2xhc3NpZmllZA" not in hidden
    for part in (b'"intValue":"3"', b'"stringValue":"e"', b'"stringValue":"LLM"'):
        assert part in hidden


def test_facts_of_calls_stay_when_content_is_replaced() -> None:
    """Kinds, names, ids, counts and finish reasons of calls read as before, in each library's vocabulary."""
    calls: list[dict[str, Any]] = [
        {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.response.id": "r"},
        {"gen_ai.response.finish_reasons": ["length", "stop"], "gen_ai.response.model": "m-1"},
        {"llm.request.type": "chat", "gen_ai.completion.0.finish_reason": "length", "llm.model_name": "m"},
        {"traceloop.span.kind": "tool", "traceloop.entity.name": "search", "tool_call.id": "call_1"},
        {"openinference.span.kind": "TOOL", "input.value": '{"name": "search", "arguments": {}}'},
        {"openinference.span.kind": "LLM", "llm.token_count.prompt": "12", "llm.finish_reason": "stop"},
    ]

    def facts(attributes: dict[str, Any]) -> tuple[Any, ...]:
        kind, tool = model_calls.kind_of(attributes), model_calls.called_tool(attributes, "span")
        return kind, model_calls.read_call(attributes), tool, model_calls.read_tool(attributes).call_id

    for call in calls:
        encoded = writer.attribute_list({**call, "note": "classified"})
        hidden = redaction.without_content(b'"scope":{},"spans":[{"attributes":%b}]}]}]}\n' % encoded)
        (span,) = spans_of_json(orjson.loads(HEAD_WITHOUT_RESOURCE + hidden))
        assert facts(span.attributes) == facts(call)
        assert span.attributes["note"] == "[redacted]"


def test_resource_keeps_only_names_when_content_is_replaced() -> None:
    """The text of another attribute of the resource goes, as that of a span's."""
    attributes = {"service.name": "x", "rollout.run.id": "run-1", "n": 5, "db.url": "redis://:hunter2@host"}
    found = redaction.redacted_attributes(redaction.without_content, attributes)
    assert found == {**attributes, "db.url": "[redacted]"}


HOSTILE = {
    "json web tokens": "eyJ-" * 40_000,
    "private keys": "-----BEGIN PRIVATE KEY-----" * 6_000,
    "ends of private keys": "-----END RSA PRIVATE KEY" * 6_000,
    "lines before an end": "AbCd\n" * 30_000 + "PRIVATE KEY",
    "backslashes": "\\" * 200_000,
    "quotes": '"' * 200_000,
    "escaped names": '\\"secret\\":\\"' * 15_000,
    "names": "password:" * 20_000,
    "open quotes": "password='\"" * 15_000,
    "words": "a-" * 100_000,
    "keys": "sk-" * 60_000,
    "addresses": "://a:" * 30_000,
    "bearers": "bearer " * 20_000,
    "options": "--password " * 15_000,
    "dashes and names": "-secret" * 20_000,
    "elements": "<password>" * 15_000,
    "sections": "<secret><![CDATA[" * 9_000,
    "escapes of URLs": "password%3D%25" * 12_000,
    "pairs": "('password', '" * 11_000,
    "names and values": "name: password value: " * 7_000,
    "values and names": "value='name='" * 12_000 + "password",
    "users of curl": "curl -u" + " -u a:" * 25_000,
    "objects": '{"password":' * 15_000,
    "arrays": "[" * 160_000,
}


def redact_hostile_texts() -> None:
    """Redact each hostile text, as it is, in JSON, and in JSON in JSON.

    A text that takes 10 s of processor time ends the process; its name is the last one printed.
    """
    for kind, text in HOSTILE.items():
        for number, encoded in enumerate((text, json.dumps(text), f"x {json.dumps([json.dumps(text)])}")):
            print(kind, number, flush=True)
            signal.setitimer(signal.ITIMER_PROF, 10)
            redact_secrets(line_with(encoded))


def test_any_text_is_redacted_in_bounded_time() -> None:
    """The worst 160 KB take milliseconds; a search whose time is quadratic takes minutes for one of them."""
    command = [sys.executable, "-c", f"import {__name__} as this; this.redact_hostile_texts()"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(ran.stdout.splitlines()) == 3 * len(HOSTILE)


def test_every_kind_of_secret_has_a_sample() -> None:
    """No kind is without a sample."""
    samples = "\n".join(secret.text for secret in SECRETS.values())
    cut = f"{SECRETS['url'].text[:30]}… (9 more characters) …abcdefgh"
    found = {name for name, kind in secret_patterns.KINDS.items() for _ in kind.find(f"{samples}\n{cut}")}
    assert found == set(secret_patterns.KINDS)


GATEWAY = Path(__file__).parents[2] / "collector-config" / "gateway.yaml"


def gateway_rules() -> list[tuple[str, str]]:
    """Return the gateway's expressions and replacements in Python's syntax."""
    processors = yaml.safe_load(GATEWAY.read_text())["processors"]
    rules = [(pattern, "****") for pattern in processors["redaction"]["blocked_values"]]
    groups = processors["transform/redaction"]["trace_statements"]
    statements = [statement for group in groups for statement in group["statements"]]
    given = re.compile(r'replace_all_patterns\(([a-z.]+), "value", "(.*)", "(.*)"\)')
    found = [match.groups() for match in map(given.fullmatch, statements) if match]
    assert [where for where, *_ in found] == [
        f"{c}.attributes" for c in ("resource", "scope", "span", "spanevent")
    ]
    (rule,) = {(pattern, replacement) for _, pattern, replacement in found}
    rules.append((rule[0].replace("\\\\", "\\"), re.sub(r"\$\$\{(\d)\}", r"\\\1", rule[1])))
    return [(pattern.replace(r"\z", r"\Z"), replacement) for pattern, replacement in rules]


BY_NAME = {"basic", "variable", "variable, spaced", "double quotes", "single quotes", "header", "json"}
BY_NAME |= {kind for kind in SECRETS if kind.startswith(("option", "curl", "element", "XML", "URL-encoded"))}
BY_NAME |= {kind for kind in SECRETS if kind.startswith(("form", "pair", "name and", "value and"))}
"""Kinds that the gateway does not know: only a name or a command in the text tells of them."""


@pytest.mark.parametrize("kind", sorted(SECRETS.keys() - BY_NAME))
@pytest.mark.parametrize("nesting", ["none", "object", "orjson", "twice"])
def test_gateway_redacts_the_same_kinds(kind: str, nesting: str) -> None:
    """The gateway's configuration has its own list, in the Collector's syntax."""
    text = f"key:\n{SECRETS[kind].text}\nend"
    for step in {"none": [], "twice": ["object", "orjson"]}.get(nesting, [nesting]):
        text = NESTINGS[step](text)
    for pattern, replacement in gateway_rules():
        text = re.sub(pattern, replacement, text)
    assert not is_readable(SECRETS[kind].hidden, decoded(text.encode()))
    assert "end" in text
