"""Loops and broken tool calls are told from usual texts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from otel_rollout.look.analysis.health.texts import has_broken_arguments, is_repetitive, is_unparsable
from tests.analysis.generated_texts import reasoning

_CODE = "".join(f"def check_{name}(value):\n    return value == {len(name)}\n\n" for name in dir(random))
_TABLE = "".join(f"| {number} | {number * number} | {number**3} |\n" for number in range(200))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#### 42",
        "yes " * 40,
        reasoning(random.Random(1), 60),
        reasoning(random.Random(2), 400),
        _CODE,
        _TABLE,
        "def f():\n" + " " * 8 + "pass\n" + reasoning(random.Random(4), 30),
    ],
)
def test_usual_text_is_not_repetitive(text: str) -> None:
    """Short answers, reasoning, code and tables repeat words, not themselves."""
    assert not is_repetitive(text)


@pytest.mark.parametrize(
    "text",
    [
        "Let me think. " + "Wait, I have to check that again. " * 20,
        reasoning(random.Random(3), 5) + " the the the" * 200,
        "数" * 400,
        reasoning(random.Random(5), 10) + "\n\n" * 2000,
    ],
)
def test_loop_is_repetitive(text: str) -> None:
    """Words, sentences, characters and blank lines."""
    assert is_repetitive(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no call", False),
        ('<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>', False),
        ('<tool_call>{"name": "a", "arguments": {}}</tool_call> and <tool_call>{"name"</tool_call>', True),
        ('<tool_call>{"arguments": {}}</tool_call>', True),
        ("<tool_call>search(query)</tool_call>", True),
        ("<tool_call>\n<function=search>\n<parameter=q>x</parameter>\n</function>\n</tool_call>", False),
        ('<tool_call>{"name": "search", "argu', False),
    ],
)
def test_tool_call_that_is_no_json_is_unparsable(text: str, expected: bool) -> None:
    """A call that the length limit has cut is no broken one."""
    assert is_unparsable(text) is expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"q": 1}', False),
        ("{bad", True),
        ("", False),
        ({"q": 1}, False),
        ('{"q": "a… (12 more characters)', False),
    ],
)
def test_arguments_of_a_reply_that_are_no_json_are_broken(arguments: Any, expected: bool) -> None:
    """In a message, a completion and a response; none are no fault, nor are those that we have cut."""
    function = {"name": "search", "arguments": arguments}
    asked = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}
    for output in (
        asked,
        {"choices": [{"message": asked}]},
        {"output": [{"type": "function_call", "call_id": "1", **function}]},
    ):
        assert has_broken_arguments(json.dumps(output)) is expected
