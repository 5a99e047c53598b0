"""Inputs and outputs of every type and size, read back by Weave's own client."""

from __future__ import annotations

import json

import pytest

from tests.sdk_spans import JSON, deliver

VALUES = [
    ('{"a": [1, null]}', "application/json", {"a": [1, None]}),
    ('"text"', "application/json", "text"),
    ("0.25", "application/json", 0.25),
    ("true", "application/json", True),
    ("null", "application/json", None),
    ("123456789012345678901234567890", "application/json", 123456789012345678901234567890),
    ('{"x": NaN, "y": [Infinity]}', "application/json", {"x": None, "y": [None]}),
    ('{"half": "\\ud800"}', "application/json", {"half": "?"}),
    ("not JSON", "application/json", "not JSON"),
    ("plain words", "text/plain", "plain words"),
    ('{"looks": "like JSON"}', "text/plain", '{"looks": "like JSON"}'),
    ("42", "text/plain", "42"),
    ("界 🎲", "text/plain", "界 🎲"),
    ("", "text/plain", ""),
]


def by_name(calls):
    return {call["op_name"]: call for call in calls}


def test_value_of_every_type_reads_back_unchanged(weave, project, rollouts, exporter):
    """JSON is read back as its value, and text as text."""
    for number, (text, mime_type, _) in enumerate(VALUES):
        given = {"input__mime_type": mime_type, "output__mime_type": mime_type}
        with rollouts.span(f"op {number}", input__value=text, output__value=text, **given):
            pass

    deliver(exporter, rollouts.ended())

    calls = by_name(weave.calls(project))
    for number, (text, _, expected) in enumerate(VALUES):
        call = calls[f"op {number}"]
        assert call["output"] == expected, text
        assert call["inputs"] == (expected if isinstance(expected, dict) else {"value": expected}), text


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029"])
def test_line_separators_become_line_ends(weave, project, rollouts, exporter, separator):
    """Weave's client would take them for ends of lines of the answer."""
    text = f"one{separator}two"
    given = {
        "input__value": json.dumps({text: [text]}, ensure_ascii=False),
        "output__value": json.dumps(text),
    }
    with pytest.raises(ValueError, match="one"), rollouts.span(text, "AGENT", note=text, **given, **JSON):
        raise ValueError(text)
    deliver(exporter, rollouts.ended())
    [call] = weave.calls(project)
    assert (call["inputs"], call["output"]) == ({"one\ntwo": ["one\ntwo"]}, "one\ntwo")
    assert (call["display_name"], call["attributes"]["note"]) == ("one\ntwo", "one\ntwo")
    assert json.loads(call["exception"])["message"] == "one\ntwo"


def test_too_large_values_are_shortened_with_a_note(weave, project, rollouts, exporter):
    """Megabytes in one call are cut, and small values of the call are whole."""
    big = "界" * 600_000
    with rollouts.span(
        "n" * 2000,
        "AGENT",
        input__value=json.dumps({"text": big, "question": "3+4?"}),
        output__value=json.dumps(["x" * 2_000_000]),
        rollout__note="kept",
        **JSON,
    ):
        pass
    with rollouts.span("many", output__value=json.dumps(list(range(600_000))), **JSON):
        pass

    deliver(exporter, rollouts.ended())

    calls = weave.calls(project)
    call = next(call for call in calls if call["op_name"] == "n" * 128)
    assert call["display_name"] == "n" * 1024
    assert call["inputs"]["question"] == "3+4?"
    assert call["inputs"]["text"].startswith("界" * 1000)
    assert "of 600000 characters left out" in call["inputs"]["text"]
    assert "of 2000000 characters left out" in call["output"][0]
    assert call["attributes"]["note"] == "kept"
    assert by_name(calls)["many"]["output"]["shortened"].startswith("[0,1,2")
