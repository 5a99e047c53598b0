"""Modules and functions are short enough to see."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 50
PRODUCT = ("otel_rollout", "autoload", "exporters", "examples", "benchmarks", "collector-config")
EXCEPTIONS = {
    "otel_rollout/record/capture/trajectory.py": "the public function with its documentation, and one class",
    "benchmarks/tables.py": "a list of tables, each with a function of a few lines",
}
"""Module, or ``module:function``, that is longer, and why."""


def lines_of_docstring(function: ast.FunctionDef) -> int:
    """Return how many lines say what a function does: the documentation of a public one may be longer."""
    first = function.body[0]
    return first.end_lineno - first.lineno + 1 if ast.get_docstring(function) is not None else 0


def longer() -> set[str]:
    """Return modules and functions of the product that are longer than the maximum."""
    found = set()
    for path in (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")):
        module, text = path.relative_to(ROOT).as_posix(), path.read_text()
        if len(text.splitlines()) > MAX_MODULE_LINES:
            found.add(module)
        for node in ast.walk(ast.parse(text)):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and node.end_lineno - node.lineno - lines_of_docstring(node) >= MAX_FUNCTION_LINES:
                found.add(f"{module}:{node.name}")
    return found


def test_longer_modules_and_functions_are_named_exceptions():
    """An exception that is short again is removed from the list."""
    assert longer() == set(EXCEPTIONS)
