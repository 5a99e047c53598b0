"""Tools, parser and reward of the demo."""

from __future__ import annotations

import pytest

from otel_rollout_demo.parser import FunctionCall, HermesToolParser, ToolCallFormatError
from otel_rollout_demo.reward import compute_score, extract_answer
from otel_rollout_demo.tools import CalculatorTool, ToolError


async def calculate(expression: object) -> str:
    """Create an instance of the calculator, call it and release it."""
    tool = CalculatorTool()
    instance_id, _ = await tool.create()
    try:
        response, reward, _ = await tool.execute(instance_id, {"expression": expression})
        assert reward == 0
        return response.text
    finally:
        await tool.release(instance_id)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("14 * 7", "98"),
        ("(3 + 4) * -12", "-84"),
        ("0.1 + 0.2", "0.3"),
        ("10 / 4", "2.5"),
        ("10 / 3", "3.333333"),
        ("-1 / 10000000", "0"),
        ("2 ** 10", "1024"),
        ("2 ** -1", "0.5"),
        ("1e3 + +1", "1001"),
    ],
)
async def test_calculator_is_exact(expression: str, value: str) -> None:
    """Results are exact, and formatted as decimal numbers."""
    assert await calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("8 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("14 *", "not an arithmetic expression"),
        ("__import__('os').getcwd()", "is not arithmetic"),
        ("x + 1", "is not arithmetic"),
        ("'a' * 3", "is not arithmetic"),
        ("True + 1", "only numbers"),
        ("7 // 2", "is not arithmetic"),
        ("9 ** 9 ** 9", "exponent"),
        ("2 ** 0.5", "exponent"),
        ("(10 ** 16) ** 16", "too large"),
        ("1e999", "too large"),
        ("(" * 150, "not an arithmetic expression"),
        ("1 + " * 60 + "1", "longer than"),
        (None, "needs the argument"),
    ],
)
async def test_invalid_expression_is_an_error_for_the_model(expression: object, message: str) -> None:
    """Any invalid expression ends in a ToolError with a message, within bounded time."""
    with pytest.raises(ToolError, match=message):
        await calculate(expression)


async def test_parser_separates_text_and_calls() -> None:
    """Several calls in one turn are found in order, with the text around them."""
    turn = await HermesToolParser().extract_tool_calls(
        'First.\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
    )
    assert turn.content == "First."
    assert turn.tool_calls == [FunctionCall("a", {"x": 1}), FunctionCall("b", {})]


async def test_plain_text_has_no_calls() -> None:
    """A turn without calls is all content."""
    turn = await HermesToolParser().extract_tool_calls("The answer is 4.\n#### 4")
    assert (turn.content, turn.tool_calls) == ("The answer is 4.\n#### 4", [])


@pytest.mark.parametrize(
    "body", ['{"name": "a"', "", "[]", '{"name": "a"}', '{"name": 1, "arguments": {}}', '"a"']
)
async def test_malformed_call_is_an_error_for_the_model(body: str) -> None:
    """A call that cannot be parsed raises an error for the model."""
    for text in (f"<tool_call>{body}</tool_call>", f"<tool_call>{body}"):
        with pytest.raises(ToolCallFormatError):
            await HermesToolParser().extract_tool_calls(text)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("so\n#### 42", "42"),
        ("#### 1\n#### -2.5\n", "-2.5"),
        ("#### $1,300", "1300"),
        ("#### .5", ".5"),
        ("42", None),
        ("#### forty", None),
        ("#### 4 apples", None),
    ],
)
def test_answer_is_the_number_of_the_last_marked_line(solution: str, answer: str | None) -> None:
    """Only a line with nothing but ``####`` and a number counts."""
    assert extract_answer(solution) == answer


@pytest.mark.parametrize(
    ("solution", "score", "answer_format"),
    [("#### 6.50", 1.0, True), ("#### 7", 0.1, True), ("6.5", 0.0, False)],
)
def test_reward_depends_on_number_and_format(solution: str, score: float, answer_format: bool) -> None:
    """The reward is 1 for the right number, 0.1 for a wrong one, and 0 for none."""
    result = compute_score("word-problems", solution, "6.5")
    assert (result.score, result.answer_format) == (score, answer_format)
