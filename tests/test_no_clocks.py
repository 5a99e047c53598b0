"""Tests wait for what happens and judge what happened: no clock decides them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = re.compile(r"\b(monotonic|perf_counter|process_time|thread_time)(_ns)?$")
ACCOUNTS = {"os.times", "resource.getrusage"}
SLEEPS = {"time.sleep", "asyncio.sleep"}
LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MEASURING = {"recording/test_regular_expressions.py"}
"""Files whose subject is how time grows."""


def measurements(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that subtract from a clock's time, as durations are measured. A deadline is a sum."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ACCOUNTS:
            yield node.lineno
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            called = [each.func for each in ast.walk(node.left) if isinstance(each, ast.Call)]
            if any(CLOCKS.search(ast.unparse(each)) for each in called):
                yield node.lineno


def fixed_sleeps(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of tests and fixtures that sleep, other than between two looks in a loop.

    A function inside a test stands for something slow.
    """

    def visit(nodes: list[ast.AST]) -> Iterator[int]:
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS:
                if ast.unparse(node.args[0]) != "0":  # which lets others run
                    yield node.lineno
            elif not isinstance(node, (*LOOPS, *FUNCTIONS)):
                yield from visit(list(ast.iter_child_nodes(node)))

    for function in tree.body:
        if isinstance(function, FUNCTIONS[:2]):
            is_fixture = any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list)
            if is_fixture or function.name.startswith("test_"):
                yield from visit(list(function.body))


@pytest.mark.parametrize("find", [measurements, fixed_sleeps])
def test_no_clock_decides_a_test(find: Callable[[ast.Module], Iterator[int]]) -> None:
    """A test asks for order, counts or a condition with a deadline; durations are measured in benchmarks."""
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("test_*.py")
        if str(path.relative_to(TESTS)) not in MEASURING
        for line in find(ast.parse(path.read_text()))
    }
    assert found == set()


@pytest.mark.parametrize(
    ("find", "source"),
    [
        (measurements, "assert time.monotonic() - began < 3"),
        (measurements, "took = perf_counter() - began"),
        (measurements, "before = resource.getrusage(resource.RUSAGE_CHILDREN)"),
        (fixed_sleeps, "def test_a():\n    time.sleep(1)"),
        (fixed_sleeps, "async def test_a():\n    with b:\n        await asyncio.sleep(0.5)"),
        (fixed_sleeps, "@pytest.fixture\ndef a():\n    time.sleep(seconds)"),
    ],
)
def test_each_kind_is_found(find: Callable[[ast.Module], Iterator[int]], source: str) -> None:
    """The search finds what people write without a second thought."""
    assert list(find(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "deadline = time.monotonic() + 60\nleft = deadline - time.monotonic()",
        "def test_a():\n    while time.monotonic() < deadline:\n        time.sleep(0.1)",
        "async def test_a():\n    await asyncio.sleep(0)",
        "def test_a():\n    def slow():\n        time.sleep(1)",
        "now = time.time() - 3600",
    ],
)
def test_deadlines_and_looks_are_no_measurements(source: str) -> None:
    """Nor are dates, and what stands for something slow."""
    tree = ast.parse(source)
    assert [*measurements(tree), *fixed_sleeps(tree)] == []
