"""The settings of content and redaction decide what reaches the disk."""

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
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.otlp.model_calls import called_tool
from otel_rollout.record import runtime
from otel_rollout.redaction.secret_finder import redact_secrets
from tests.spool_reader import Recorded, contents_below, read_directory

SECRETS = {  # text with a secret in it → the part that must not be readable
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
    """Return the prompt, or raise an exception with it."""
    if isinstance(prompt, Exception):
        raise prompt
    trace.get_current_span().set_attribute("note", str(prompt))
    return {"answer": prompt}


@pytest.fixture
def recorded_with(fresh_process: None, test_exporters: None, tmp_path: Path) -> Callable[..., list[Recorded]]:
    """Return a function that records calls of ``op``, given arguments and settings."""

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
    """Read all files of the spool, with journals and tables of running trajectories."""
    return b"".join(contents_below(tmp_path / "spool").values())


def test_metadata_records_types_and_sizes_without_content(recorded_with: Record) -> None:
    """Arguments are recorded by name, type and size, exceptions by type."""
    call, failed, *_ = recorded_with(["classified"], ValueError("classified"), capture_content="metadata")
    assert call.input == {"prompt": "<list of 1>", "n": "<int>"}
    assert call.output == {"answer": "<list of 1>"}
    assert (failed.attributes["error.type"], failed.span.status.message) == ("ValueError", "ValueError")
    assert list(failed.span.events) == []


@pytest.mark.parametrize("content", ["full", "metadata"])
def test_tool_that_is_called_by_name_has_its_name(
    fresh_process: None, test_exporters: None, tmp_path: Path, content: str
) -> None:
    """A tool's name is no content; the argument ``name`` of any other operation is."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, capture_content=content)
    call_tool = rollout_trace_op(lambda name, arguments: name, name="call_tool", kind="TOOL")
    greet = rollout_trace_op(lambda name, arguments: name, name="greet")
    with rollout_trace_attr():
        call_tool("search \ud83d", {"query": "classified"})
        greet("Ada", {})
    otel_rollout.shutdown(60)
    tool, greeting, _ = read_directory(tmp_path / "spool")
    assert called_tool(tool.attributes, tool.name) == r"search \ud83d"
    if content == "metadata":
        assert tool.input["arguments"] == "<dict of 1>"
        assert (tool.output, greeting.input["name"]) == ("<str of 8>", "<str of 3>")


def test_text_that_utf_8_cannot_encode_is_escaped(recorded_with: Record) -> None:
    """A half of a pair of surrogates, which a cut text may end with, spoils no other value."""
    op = recorded_with("cut here: \ud83d")[0]
    assert op.output == {"answer": r"cut here: \ud83d"}


def test_content_none_records_spans_without_inputs_and_outputs(recorded_with: Record) -> None:
    """The root has no input and no output; the tree is complete."""
    spans = recorded_with("classified", ValueError("classified"), capture_content="none")
    assert [span.name for span in spans] == ["op", "op", "score reward", "rollout_trace"]
    for span in spans[:2] + spans[3:]:
        assert not {"input.value", "output.value"} & set(span.attributes)


@pytest.mark.parametrize("text", SECRETS, ids=range(len(SECRETS)))
def test_secret_is_redacted_in_every_part_of_a_span(recorded_with: Record, tmp_path: Path, text: str) -> None:
    """Nested arguments, results, attributes, exceptions and comments are redacted.

    Nothing is dropped.
    """
    nested = {"a": [{"b": f"before {text}, after"}]}
    long = ["x" * 100_000, text]
    spans = recorded_with(text, nested, long, ValueError(f"cannot use {text}"), redact="secrets")
    assert SECRETS[text].encode() not in on_disk(tmp_path)
    assert spans[1].input["prompt"]["a"][0]["b"].startswith("before ")
    assert "[redacted]" in spans[1].input["prompt"]["a"][0]["b"]
    assert otel_rollout.status().dropped == {}


def test_values_under_names_of_secrets_are_redacted(recorded_with: Record, tmp_path: Path) -> None:
    """A password is found by its name; token counts and token ids are not secrets."""
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
def test_redacted_line_is_still_json_within_json(value: object, text: str) -> None:
    """Both levels of JSON can be parsed after any redaction."""
    inner = orjson.dumps([value, text]).decode("utf-8", "replace")
    line = orjson.dumps({"attributes": [{"value": {"stringValue": inner}}]})
    redacted = orjson.loads(redact_secrets(line))
    assert len(orjson.loads(redacted["attributes"][0]["value"]["stringValue"])) == 2


def shout(text: str) -> str:
    """Redact a word, as an application's function may."""
    return text.replace("classified", "UNREADABLE")


def fail(text: str) -> str:
    """Fail for a word, as an application's function may."""
    if "classified" in text:
        raise RuntimeError("no")
    return text


def test_resource_attributes_are_redacted(
    recorded_with: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application's resource attributes, which are on every line, are redacted."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "db.url=redis://:hunter2@host,db.password=hunter3")
    recorded_with("harmless", redact="secrets")
    for secret in (b"hunter2", b"hunter3"):
        assert secret not in on_disk(tmp_path)
    assert b"redis://:[redacted]@host" in on_disk(tmp_path)


def test_application_function_redacts_every_line(recorded_with: Record, tmp_path: Path) -> None:
    """The function gets every line before it is written, and its result is recorded."""
    call, *_ = recorded_with("classified", redact=f"secrets,{__name__}:shout")
    assert call.input == {"prompt": "UNREADABLE", "n": 1}
    assert b"classified" not in on_disk(tmp_path)


def test_span_is_dropped_and_counted_when_the_function_fails(recorded_with: Record, tmp_path: Path) -> None:
    """A line that the function did not return is not written, and the program goes on."""
    spans = recorded_with("classified", "harmless", redact=f"{__name__}:fail")
    assert [span.name for span in spans] == ["op"]
    assert otel_rollout.status().dropped == {"redaction": 3}
    assert b"classified" not in on_disk(tmp_path)


def test_redaction_of_everything_keeps_spans_and_hides_their_text(
    recorded_with: Record, tmp_path: Path
) -> None:
    """No recorded text is on disk, and the spans are."""
    assert recorded_with("classified", "harmless", redact="everything")
    assert b"classified" not in on_disk(tmp_path)
    assert b"harmless" not in on_disk(tmp_path)


def test_misspelt_redaction_switches_tracing_off(
    fresh_process: None, test_exporters: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Nothing is recorded unredacted, and an error has the word that is meant."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, redact="secret")
    op("classified")
    assert (
        "OTEL_ROLLOUT_REDACT='secret' has 'secret', which is none of secrets, everything, module:function "
        "(did you mean 'secrets'?)" in caplog.text
    )
    assert b"classified" not in on_disk(tmp_path)


@pytest.mark.parametrize(
    ("redact", "said"),
    [
        ("nowhere:nothing", "OTEL_ROLLOUT_REDACT='nowhere:nothing': there is no such function"),
        ("math:pi", "OTEL_ROLLOUT_REDACT='math:pi': pi is no function"),
        (" , ", "OTEL_ROLLOUT_REDACT=' , ' names no redaction"),
    ],
)
def test_redaction_that_cannot_be_used_switches_tracing_off(
    fresh_process: None,
    test_exporters: None,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    redact: str,
    said: str,
) -> None:
    """Nothing is recorded unredacted, and an error says what is wrong."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, redact=redact)
    op("classified")
    assert said in caplog.text
    assert b"classified" not in on_disk(tmp_path)


def test_spans_of_the_applications_provider_are_redacted(
    recorded_with: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line on our disk is redacted, whichever provider made the span."""
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
def test_value_under_a_secret_name_is_redacted_to_its_end(
    recorded_with: Record, tmp_path: Path, value: object
) -> None:
    """Quoted values are redacted whole, also in JSON within JSON.

    The text around stays.
    """
    call, *_ = recorded_with(value, redact="secrets")
    assert call.input["n"] == 1
    assert "[redacted]" in str(call.input["prompt"])
    for part in ("cd,ef", "gh"):
        assert part not in str(call.input)


def test_attribute_with_a_secret_name_is_redacted(recorded_with: Record, tmp_path: Path) -> None:
    """The attribute may be the user's or an extra of the trajectory."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, redact="secrets")
    with rollout_trace_attr(step=1, api_key="hunter3"):
        trace.get_current_span().set_attribute("db.password", 'hun"ter2')
    active = runtime.current()
    assert active is not None
    assert active.writer.flush(10)
    assert b"hunter3" not in on_disk(tmp_path)
    assert b"ter2" not in on_disk(tmp_path)
