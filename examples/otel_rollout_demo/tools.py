"""Provide the calculator that the model may call, shaped as verl's ``BaseTool``.

A tool has a ``name`` and an OpenAI-style ``tool_schema``. The agent loop creates and releases an instance for
each call. ``execute`` returns a text, a reward and metrics. A tool that fails raises ``ToolError``: the
tool's span gets status ERROR, and the agent loop turns the message into text for the model.
"""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from otel_rollout import rollout_trace_op

if TYPE_CHECKING:
    from collections.abc import Callable


class ToolError(Exception):
    """A tool call cannot be answered; the message is for the model."""


@dataclass(frozen=True)
class ToolResponse:
    """A tool's answer to the model."""

    text: str = ""


class Tool(Protocol):
    """The part of verl's ``BaseTool`` that the agent loop calls."""

    name: str
    tool_schema: dict[str, Any]

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Create an instance for a call; return the instance's id and an empty response."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Call the tool, and return response for the model, reward of the call, metrics."""

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Remove the instance."""


CALCULATOR_SCHEMA: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an arithmetic expression and returns its value.",
        "parameters": {
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "description": "Numbers with + - * / ** and parentheses, for example (3 + 4) * 12.",
                }
            },
            "required": ["expression"],
        },
    },
}


class CalculatorTool:
    """Evaluate one arithmetic expression per call, exactly, and without ``eval``."""

    def __init__(self) -> None:
        self.name = "calculator"
        self.tool_schema = CALCULATOR_SCHEMA
        self._digits: dict[str, int] = {}

    async def create(
        self, instance_id: str | None = None, *, digits: int = 6, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        """Create an instance that answers with at most ``digits`` decimals."""
        instance_id = instance_id or uuid4().hex
        self._digits[instance_id] = digits
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Evaluate ``parameters["expression"]``.

        The reward of a call is always 0: only the final answer counts here.

        Raises:
            ToolError: the expression is missing, is not arithmetic, or has no value.
        """
        expression = parameters.get("expression")
        if not isinstance(expression, str):
            raise ToolError("calculator needs the argument 'expression', a string")
        text = format_number(evaluate(expression), self._digits.get(instance_id, 6))
        return ToolResponse(text), 0.0, {"expression_length": len(expression)}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Remove the instance."""
        self._digits.pop(instance_id, None)


class RemoteTool:
    """A tool in a separate Ray actor, such as a sandbox.

    The agent loop uses it like any other tool.

    Args:
        actor: handle of the actor.
        name: name of the tool.
        tool_schema: description of the tool for the model.
    """

    def __init__(self, actor: Any, name: str, tool_schema: dict[str, Any]) -> None:
        self.name = name
        self.tool_schema = tool_schema
        self._actor = actor

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """See :class:`Tool`."""
        created: tuple[str, ToolResponse] = await self._actor.create.remote(instance_id, **kwargs)
        return created

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """See :class:`Tool`.

        Raises:
            ToolError: the error that the tool raised, without the wrapper that Ray puts around it.
        """
        from ray.exceptions import RayTaskError

        try:
            result: tuple[ToolResponse, float, dict[str, Any]] = await self._actor.execute.remote(
                instance_id, parameters, **kwargs
            )
        except RayTaskError as error:
            if isinstance(error.cause, ToolError):
                raise error.cause from None
            raise
        return result

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """See :class:`Tool`."""
        await self._actor.release.remote(instance_id, **kwargs)


# Limits, since a model writes the expression.
_MAX_EXPRESSION: Final = 200
"""Characters of an expression, which also limit its depth."""
_MAX_EXPONENT: Final = 16
"""Largest exponent."""
_MAX_BITS: Final = 256
"""Bits of a numerator or denominator."""

_BINARY: Final[dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(expression: str) -> Fraction:
    """Return the exact value of an arithmetic expression.

    Raises:
        ToolError: the message tells the model what to correct.
    """
    if len(expression) > _MAX_EXPRESSION:
        raise ToolError(f"the expression is longer than {_MAX_EXPRESSION} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ToolError(f"'{expression}' is not an arithmetic expression") from error
    try:
        return _value(tree.body)
    except ZeroDivisionError as error:
        raise ToolError(f"division by zero in '{expression}'") from error


def format_number(value: Fraction, digits: int = 6) -> str:
    """Return a number as decimal text, rounded to ``digits`` decimals.

    The text has no trailing zeros.
    """
    if value.denominator == 1:
        return str(value.numerator)
    text = f"{float(value):.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=bool()):
            raise ToolError("only numbers can be calculated with")
        case ast.Constant(value=int() | float() as number):
            # The literal's text is converted: 0.1 means one tenth, not the nearest binary fraction.
            return _bounded(_literal(str(number)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, exponent = _value(left), _value(right)
            if exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
                raise ToolError(f"an exponent must be a whole number of at most {_MAX_EXPONENT}")
            return _bounded(Fraction(base ** int(exponent)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case _:
            raise ToolError(f"'{ast.unparse(node)}' is not arithmetic; use numbers with + - * / ** ( )")


def _literal(text: str) -> Fraction:
    try:
        return Fraction(text)
    except ValueError as error:  # Python reads 1e999 as infinity
        raise ToolError("the number is too large") from error


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ToolError("the number is too large")
    return value
