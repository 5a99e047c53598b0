"""What of content reaches the disk: all, outlines, nothing; and never what is made unreadable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, runtime, score
from otel_rollout.recording import redaction
from tests.spool_reader import Recorded, read_directory

SECRETS = {  # text with a secret in it → the part that must not be read
    "key sk-proj-abcdefghijklmnopqrstuvwx.": "abcdefghijklmnopqrstuvwx",
    "AKIAIOSFODNN7EXAMPLE": "AKIAIOSFODNN7EXAMPLE",
    "ghp_" + "a1" * 18: "a1a1a1",
    "glpat-abcdefghijklmnopqrst": "abcdefghij",
    "hf_" + "abcde12345" * 3: "abcde12345",
    "xoxb-1234567890-abcdef": "1234567890",
    "AIza" + "b" * 35: "bbbbbb",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl": "eyJzdWIiOiIxMjM0In0",
    "Authorization: Bearer abcdefghijklmnop1234": "abcdefghijklmnop1234",
    "postgresql://user:hunter2@db/x": "hunter2",
    "export DB_PASSWORD=hunter2": "hunter2",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEhunter2\n-----END RSA PRIVATE KEY-----": "MIIEhunter2",
    "key:\nghp_" + "b2" * 18: "b2b2b2",
    "key:\tsk-abcdefghijklmnopqrstuvwx": "abcdefghijklmnopqrstuvwx",
    "\x1b[32msk-abcdefghijklmnopqrstuvwx\x1b[0m": "abcdefghijklmnopqrstuvwx",
    "redis://:hunter2@host": "hunter2",
    'password="hunter2 hunter3"': "hunter3",
}


@rollout_trace_op(name="op")
def op(prompt: object, n: int = 1) -> object:
    """Gives what it got, or raises it."""
    if isinstance(prompt, Exception):
        raise prompt
    trace.get_current_span().set_attribute("note", str(prompt))
    return {"answer": prompt}


@pytest.fixture
def recorded_with(fresh_process: None, test_exporters: None, tmp_path: Path) -> Callable[..., list[Recorded]]:
    """Records calls of ``op`` with these arguments, under these settings."""

    def record(*prompts: object, **settings: str) -> list[Recorded]:
        otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, **settings)
        with rollout_trace_attr(step=1) as trajectory:
            trajectory.set_input({"question": prompts[0]})
            for prompt in prompts:
                with contextlib.suppress(ValueError):
                    op(prompt)
            score("reward", 1.0, comment=str(prompts[0]))
        active = runtime.current()
        assert active is not None
        assert active.writer.flush(10)
        return read_directory(tmp_path / "spool")

    return record


Record = Callable[..., list[Recorded]]


def on_disk(tmp_path: Path) -> bytes:
    """Everything in the spool, journals and tables of open trajectories included."""
    return b"".join(path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file())


def test_metadata_is_names_types_and_sizes(recorded_with: Record) -> None:
    """Of arguments the names and kinds, of exceptions the type; no content."""
    call, failed, *_ = recorded_with(["classified"], ValueError("classified"), capture_content="metadata")
    assert call.input == {"prompt": "<list of 1>", "n": "<int>"}
    assert call.output == {"answer": "<list of 1>"}
    assert (failed.attributes["error.type"], failed.span.status.message) == ("ValueError", "ValueError")
    assert list(failed.span.events) == []


def test_none_is_no_content_at_all(recorded_with: Record) -> None:
    """Neither inputs nor outputs are there, on the root either; the trees are as ever."""
    spans = recorded_with("classified", ValueError("classified"), capture_content="none")
    assert [span.name for span in spans] == ["op", "op", "score reward", "rollout_trace"]
    for span in spans[:2] + spans[3:]:
        assert not {"input.value", "output.value"} & set(span.attributes)


@pytest.mark.parametrize("text", SECRETS, ids=range(len(SECRETS)))
def test_secrets_are_unreadable_wherever_they_are(recorded_with: Record, tmp_path: Path, text: str) -> None:
    """In arguments and results however deep, attributes, exceptions and comments; nothing is dropped."""
    nested = {"a": [{"b": f"before {text}, after"}]}
    long = ["x" * 100_000, text]
    spans = recorded_with(text, nested, long, ValueError(f"cannot use {text}"), redact="secrets")
    assert SECRETS[text].encode() not in on_disk(tmp_path)
    assert spans[1].input["prompt"]["a"][0]["b"].startswith("before ")
    assert "[redacted]" in spans[1].input["prompt"]["a"][0]["b"]
    assert otel_rollout.status().dropped == {}


def test_values_under_telling_names_are_unreadable(recorded_with: Record, tmp_path: Path) -> None:
    """A password is one by its name; token counts and token ids are none."""
    prompt = {"password": "correct horse", "db_api_key": "battery", "max_tokens": 7, "token_ids": [1, 2]}
    call, *_ = recorded_with(prompt, redact="secrets")
    shown = {"password": "[redacted]", "db_api_key": "[redacted]", "max_tokens": 7, "token_ids": [1, 2]}
    assert call.input == {"prompt": shown, "n": 1}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=20,
    ),
    st.sampled_from(sorted(SECRETS)),
)
def test_a_line_stays_a_line(value: object, text: str) -> None:
    """Whatever is redacted, the line is JSON in JSON as before."""
    inner = orjson.dumps([value, text]).decode("utf-8", "replace")
    line = orjson.dumps({"attributes": [{"value": {"stringValue": inner}}]})
    redacted = orjson.loads(redaction.redact_secrets(line))
    assert len(orjson.loads(redacted["attributes"][0]["value"]["stringValue"])) == 2


def shout(text: str) -> str:
    """A function such as an application may give."""
    return text.replace("classified", "UNREADABLE")


def fail(text: str) -> str:
    """One that fails."""
    if "classified" in text:
        raise RuntimeError("no")
    return text


def test_a_resource_is_redacted(
    recorded_with: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the application says of itself is on every line."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "db.url=redis://:hunter2@host,db.password=hunter3")
    recorded_with("harmless", redact="secrets")
    for secret in (b"hunter2", b"hunter3"):
        assert secret not in on_disk(tmp_path)
    assert b"redis://:[redacted]@host" in on_disk(tmp_path)


def test_a_function_of_the_application(recorded_with: Record, tmp_path: Path) -> None:
    """It sees every line before it is written, and what it makes of it is what is recorded."""
    call, *_ = recorded_with("classified", redact=f"secrets,{__name__}:shout")
    assert call.input == {"prompt": "UNREADABLE", "n": 1}
    assert b"classified" not in on_disk(tmp_path)


def test_a_function_that_fails_keeps_its_span_from_being_written(
    recorded_with: Record, tmp_path: Path
) -> None:
    """What it did not pass is not written; it is counted, and the program goes on."""
    spans = recorded_with("classified", "harmless", redact=f"{__name__}:fail")
    assert [span.name for span in spans] == ["op"]
    assert otel_rollout.status().dropped == {"redaction": 3}
    assert b"classified" not in on_disk(tmp_path)


def test_without_the_function_nothing_is_recorded(
    fresh_process: None, test_exporters: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A name that leads nowhere switches tracing off, and says so: unredacted is not what was asked for."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, redact="nowhere:nothing")
    op("classified")
    assert "OTEL_ROLLOUT_REDACT='nowhere:nothing': there is no such function" in caplog.text
    assert b"classified" not in on_disk(tmp_path)


def test_spans_through_the_applications_provider_are_redacted_too(
    recorded_with: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made the span: what reaches our disk went through it."""
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    recorded_with("AKIAIOSFODNN7EXAMPLE", redact="secrets")
    assert b"AKIAIOSFODNN7EXAMPLE" not in on_disk(tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        {"password": 'ab"cd,ef\\gh'},
        {"arguments": orjson.dumps({"api_key": "abcdefgh"}).decode()},
        {"headers": {"X-Api-Key-1": "abcdefgh", "n": 1}},
    ],
)
def test_the_whole_of_a_value_under_a_telling_name_goes(
    recorded_with: Record, tmp_path: Path, value: object
) -> None:
    """Up to its own end, quotes and all, and in JSON within JSON; what it stands in stays readable."""
    call, *_ = recorded_with(value, redact="secrets")
    assert call.input["n"] == 1
    assert "[redacted]" in str(call.input["prompt"])
    for part in ("cd,ef", "gh"):
        assert part not in str(call.input)


def test_an_attribute_with_a_telling_name_goes(recorded_with: Record, tmp_path: Path) -> None:
    """Set by the user or given to the trajectory."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, redact="secrets")
    with rollout_trace_attr(step=1, api_key="hunter3"):
        trace.get_current_span().set_attribute("db.password", 'hun"ter2')
    active = runtime.current()
    assert active is not None
    assert active.writer.flush(10)
    assert b"hunter3" not in on_disk(tmp_path)
    assert b"ter2" not in on_disk(tmp_path)
