"""Every regular expression of the package takes linear time at most."""

from __future__ import annotations

import ast
import importlib
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from otel_rollout.redaction import secret_patterns

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import sre_constants
    import sre_parse

ROOT = Path(__file__).parents[2]
LARGEST = 1 << 14
"""Characters of the largest input that is timed."""
GROWTH = 2.8
"""Time for twice the text over time for the text, at most: linear is 2, quadratic 4. If it is more, the
time for eight times the text decides: linear is 8, quadratic 64, and the most is 22."""
FLOOR = 0.004
"""Seconds of processor time that are too few to measure growth."""
ANCHORED = {"match", "fullmatch"}
FUNCTIONS = ("compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")


class Expression(NamedTuple):
    """A regular expression, its position in the package, and whether it is anchored."""

    where: str
    pattern: re.Pattern[Any]
    is_anchored: bool = False


def sources() -> list[Path]:
    """Return the modules of the package, of its exporters and of the demo."""
    folders = [ROOT / "otel_rollout", ROOT / "exporters", ROOT / "examples" / "otel_rollout_demo"]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def expressions() -> Iterator[Expression]:
    """Yield every expression in a call of ``re``, and those that redaction composes."""
    for path in sources():
        tree = ast.parse(path.read_text())
        names = {id(node.value): ast.unparse(target) for node, target in assignments(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and is_of_re(node.func):
                pattern = value_of(node.args[0], path)
                if pattern is not None:
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    used = methods(tree, names.get(id(node), "")) or {node.func.attr}
                    yield Expression(where, re.compile(pattern, flags_of(node, path)), used <= ANCHORED)
    for name, kind in secret_patterns.KINDS.items():
        yield Expression(f"secret_patterns.KINDS[{name!r}]", kind.pattern)


def assignments(tree: ast.AST) -> Iterator[tuple[ast.Assign | ast.AnnAssign, ast.expr]]:
    """Yield every assignment of a value to a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield node, node.targets[0]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node, node.target


def methods(tree: ast.AST, name: str) -> set[str]:
    """Return the methods of a compiled expression that its module calls."""
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in attributes if ast.unparse(node.value) == name} & set(FUNCTIONS)


def is_of_re(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
        and function.attr in FUNCTIONS
    )


def flags_of(call: ast.Call, path: Path) -> int:
    """Return the flags in a call of ``re``, by name or by the module's constant."""
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg == "flags")]
    names = {node.attr for part in given for node in ast.walk(part) if isinstance(node, ast.Attribute)}
    flags = 0
    for name in names & set(re.RegexFlag.__members__):
        flags |= re.RegexFlag[name]
    for node in (node for part in given for node in ast.walk(part) if isinstance(node, ast.Name)):
        constant = getattr(imported(path), node.id, 0) if node.id.isupper() else 0
        flags |= constant if isinstance(constant, re.RegexFlag) else 0
    return int(flags)


def imported(path: Path) -> ModuleType:
    """Import the module of a file."""
    parts = path.with_suffix("").relative_to(ROOT).parts
    parts = parts[1:] if parts[0] in ("exporters", "examples") else parts
    return importlib.import_module(".".join(part for part in parts if part != "__init__"))


def value_of(expression: ast.expr, path: Path) -> Any:
    """Evaluate an expression of a module's constants; None if it depends on more."""
    try:
        return ast.literal_eval(expression)
    except ValueError:
        try:
            return eval(compile(ast.Expression(expression), "pattern", "eval"), vars(imported(path)))
        except NameError:
            return None


# --- Inputs, derived from the expression

FAILING = ("", "\x00", "\n")
"""Endings after a repeated part that prevent a match."""


def samples(parsed: Any, is_text: bool) -> list[str]:
    """Return some texts that an expression, or a part of one, matches."""
    texts = [""]
    for operation, argument in parsed:
        texts = [text + more for text in texts[:4] for more in sample(operation, argument, is_text)[:4]]
    return list(dict.fromkeys(texts))[:8]


def sample(operation: Any, argument: Any, is_text: bool) -> list[str]:
    """Return some texts that one operation of an expression matches."""
    c = sre_constants
    if operation is c.LITERAL:
        return [chr(argument)]
    if operation is c.NOT_LITERAL:
        return [next(x for x in "a-. " if ord(x) != argument)]
    if operation is c.ANY:
        return ["a", "\\", '"']
    if operation is c.IN:
        return members(argument)
    if operation is c.SUBPATTERN:
        return samples(argument[-1], is_text)
    if operation is c.BRANCH:
        return [text for branch in argument[1] for text in samples(branch, is_text)[:2]][:8]
    if operation in (c.MAX_REPEAT, c.MIN_REPEAT, getattr(c, "POSSESSIVE_REPEAT", None)):
        least, most, part = argument
        texts = samples(part, is_text)
        return [text * max(least, min(1, most)) for text in texts]
    return [""]  # assertions and references match no text of their own here


def members(argument: Any) -> list[str]:
    """Return some characters of a class."""
    candidates = "a0A_- .\n\"'\\/=+:1Z"
    found = []
    for character in candidates:
        kinds = [matches_member(item, character) for item in argument if item[0] is not sre_constants.NEGATE]
        negated = any(item[0] is sre_constants.NEGATE for item in argument)
        if any(kinds) != negated:
            found.append(character)
    literals = [chr(x[1]) for x in argument if x[0] is sre_constants.LITERAL]
    return list(dict.fromkeys([*found[:4], *literals[:2]])) or ["a"]


def matches_member(item: Any, character: str) -> bool:
    """Return whether a part of a class has a character."""
    operation, argument = item
    if operation is sre_constants.LITERAL:
        return ord(character) == argument
    if operation is sre_constants.RANGE:
        return argument[0] <= ord(character) <= argument[1]
    categories = {
        sre_constants.CATEGORY_DIGIT: r"\d",
        sre_constants.CATEGORY_NOT_DIGIT: r"\D",
        sre_constants.CATEGORY_SPACE: r"\s",
        sre_constants.CATEGORY_NOT_SPACE: r"\S",
        sre_constants.CATEGORY_WORD: r"\w",
        sre_constants.CATEGORY_NOT_WORD: r"\W",
    }
    return re.match(categories[argument], character) is not None


def repeated_parts(parsed: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield for each repetition the text before it and the repeated text."""
    c = sre_constants
    for operation, argument in parsed:
        if operation in (c.MAX_REPEAT, c.MIN_REPEAT):
            for part in samples(argument[2], True):
                if part:
                    yield before, part
            yield from repeated_parts(argument[2], before)
        elif operation is c.SUBPATTERN:
            yield from repeated_parts(argument[-1], before)
        elif operation is c.BRANCH:
            for branch in argument[1]:
                yield from repeated_parts(branch, before)
        elif operation in (c.ASSERT, c.ASSERT_NOT):
            yield from repeated_parts(argument[1], before)
        before += (sample(operation, argument, True) or [""])[0]


def inputs(pattern: re.Pattern[Any]) -> set[tuple[str, str, str]]:
    """Return beginning, repeated part and end of texts that might take long."""
    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parsed = sre_parse.parse(source, pattern.flags)
    found = set()
    for before, part in repeated_parts(parsed):
        for end in FAILING:
            found |= {(before, part, end), ("", before + part, end), ("", part, end)}
    whole = samples(parsed, True)[:3]
    for text in whole:
        for cut in {len(text), len(text) // 2, max(len(text) - 1, 1)}:
            found |= {("", text[:cut], end) for end in FAILING[:2]}
    return {(before, part, end) for before, part, end in found if part}


def seconds(expression: Expression, text: str) -> float:
    """Measure the processor time to find all matches in a text; the least of three."""
    pattern = expression.pattern
    subject: Any = text.encode("utf-8", "replace") if isinstance(pattern.pattern, bytes) else text
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        if expression.is_anchored:
            pattern.match(subject)
            pattern.fullmatch(subject)
        else:
            for _ in pattern.finditer(subject):
                pass
        best = min(best, time.thread_time() - began)
        if best < FLOOR / 4:
            break
    return best


def is_super_linear(expression: Expression, before: str, part: str, end: str) -> bool:
    """Return whether time grows faster than the text.

    Sizes grow slowly, as nothing can interrupt it.
    """

    def took(size: int) -> float:
        return seconds(expression, before + part * (size // len(part) + 1) + end)

    if any(took(size) > FLOOR for size in range(12, 32, 4)):
        return True
    last, size = FLOOR, 64
    while size <= LARGEST:
        now = took(size)
        if now > FLOOR and now > GROWTH * last and took(size) > GROWTH**3 * took(size // 8):
            return True
        last, size = now, 2 * size
    return False


FOUND = list(expressions())


def test_expressions_of_all_packages_are_found() -> None:
    """The search covers the package, its exporters and redaction's composed patterns."""
    places = {re.split(r"[/\[.]", expression.where)[0] for expression in FOUND}
    assert places >= {"otel_rollout", "exporters", "secret_patterns"}


@pytest.mark.parametrize("expression", FOUND, ids=[expression.where for expression in FOUND])
def test_time_grows_no_faster_than_the_text(expression: Expression) -> None:
    """The texts repeat what the expression repeats, with an end that does not match."""
    for before, part, end in sorted(inputs(expression.pattern)):
        assert not is_super_linear(expression, before, part, end), (before, part, end)


@pytest.mark.parametrize(
    ("pattern", "is_slow"),
    [
        (r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*", True),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"]*?-----END [A-Z ]*PRIVATE KEY-----", True),
        (r"<a>\s*(.*?)\s*</a>", True),
        (r"(a+)+$", True),
        (r"\s+$", True),
        (r"eyJ[A-Za-z0-9_-]+(?:\.x)?", False),
        (r"[a-z]+=\d+", True),
        (r"\d+-\w{2}", True),
        (r'"[^"\\]*(?:\\.[^"\\]*)*"', True),
        (r'"[^"\\]*(?:\\.[^"\\]*)*"?', False),
    ],
)
def test_search_finds_known_slow_expressions(pattern: str, is_slow: bool) -> None:
    """Some of these expressions were once part of this package."""
    expression = Expression("here", re.compile(pattern, re.DOTALL))
    assert any(is_super_linear(expression, *given) for given in sorted(inputs(expression.pattern))) == is_slow
