"""Write the tables of docs/attributes.md: ``python -m website.attributes``.

Their sources, semconv.py and span_metrics.py, are parsed, not imported: docstrings describe the names, which
costs the recording process nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "attributes.md"
NAMES: Final = ROOT / "otel_rollout" / "base" / "semconv.py"
METRICS: Final = ROOT / "otel_rollout" / "account" / "span_metrics.py"

_GROUP = re.compile(
    r"^# --- (?P<title>.+?) \((?P<owner>.+), (?P<level>[\w ]+)\)\. (?P<where>.+?\.)(?: -+)?$", re.M
)
_TYPE = r"(?:str|bool|int|float|bytes|list\[str\]|a list| \(JSON\)|, | or )+"
_DESCRIPTION = re.compile(
    rf"(?:(?P<templates>``[^`]+``(?:, ``[^`]+``)*): )?(?P<type>{_TYPE})\. (?P<text>.*?)"
    r"(?: For example (?P<example>.*)\.)?",
    re.DOTALL,
)
_OPENTELEMETRY_TYPES: Final = {
    "str": "string",
    "bool": "boolean",
    "float": "double",
    "list[str]": "string[]",
}
_INSTRUMENTS: Final = {
    "histogram": "histogram",
    "create_counter": "counter",
    "create_up_down_counter": "up-down counter",
}


@dataclass(frozen=True)
class Attribute:
    """An attribute as its docstring describes it."""

    names: str
    type_: str
    text: str
    example: str
    level: str


@dataclass(frozen=True)
class Group:
    """Attributes that a comment of semconv.py groups."""

    title: str
    owner: str
    where: str
    attributes: list[Attribute]


def groups(source: str) -> list[Group]:
    """Return the described attributes of semconv.py, group by group."""
    described = list(_described_constants(source))
    comments = list(_GROUP.finditer(source))
    lines = [source.count("\n", 0, comment.start()) for comment in comments]
    found = []
    for comment, first, last in zip(comments, lines, [*lines[1:], source.count("\n")], strict=True):
        attributes = [
            attribute
            for line, name, docstring in described
            if first < line <= last and (attribute := _attribute(name, docstring, comment["level"]))
        ]
        found.append(Group(comment["title"], comment["owner"], comment["where"], attributes))
    return found


def metrics(source: str) -> list[tuple[str, str, str, str]]:
    """Return name, instrument, unit and description of the metrics that span_metrics.py makes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = (
                node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            )
            texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            if function in _INSTRUMENTS and len(texts) == 3:
                name, unit, text = map(str, texts)
                found.append((name, _INSTRUMENTS[function], unit, text))
    return sorted(found)


def page(text: str) -> str:
    """Return the page with its generated parts made anew."""
    names = groups(NAMES.read_text(encoding="utf-8"))
    parts = {
        "attributes": "\n\n".join(_section(group) for group in names),
        "metrics": _metrics_table(metrics(METRICS.read_text(encoding="utf-8"))),
    }
    for name, part in parts.items():
        between = re.compile(rf"(?<=<!-- generated:{name} -->\n).*?(?=<!-- generated:end -->)", re.DOTALL)
        text = between.sub(f"\n{part}\n\n".replace("\\", r"\\"), text)
    return text


def _described_constants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, value and docstring of each constant that has one."""
    body = ast.parse(source).body
    for constant, after in pairwise(body):
        if isinstance(constant, ast.AnnAssign) and isinstance(after, ast.Expr):
            value = constant.value.value if isinstance(constant.value, ast.Constant) else ""
            docstring = after.value.value if isinstance(after.value, ast.Constant) else ""
            yield constant.lineno, str(value), " ".join(str(docstring).split())


def _attribute(name: str, docstring: str, level: str) -> Attribute | None:
    match = _DESCRIPTION.fullmatch(docstring)
    if match is None:
        return None
    names = match["templates"] or f"``{name}``"
    return Attribute(names, match["type"], match["text"], match["example"] or "", level)


def _section(group: Group) -> str:
    rows = [
        f"| {attribute.names} | {_type_of_opentelemetry(attribute.type_)} | {attribute.text} "
        f"| {attribute.example} | {attribute.level} |"
        for attribute in group.attributes
    ]
    owner = "Ours" if group.owner == "ours" else group.owner
    head = ["| attribute | type | meaning | example | stability |", "|---|---|---|---|---|"]
    return _markdown("\n".join([f"### {group.title}\n\n{owner}. {group.where}\n", *head, *rows]))


def _metrics_table(rows: list[tuple[str, str, str, str]]) -> str:
    head = ["| metric | instrument | unit | meaning | stability |", "|---|---|---|---|---|"]
    body = [
        f"| `{name}` | {instrument} | `{unit}` | {text} | development |"
        for name, instrument, unit, text in rows
    ]
    return "\n".join([*head, *body])


def _type_of_opentelemetry(type_: str) -> str:
    return re.sub(r"list\[str\]|str|bool|float", lambda word: _OPENTELEMETRY_TYPES[word[0]], type_)


def _markdown(text: str) -> str:
    """Return text of docstrings as Markdown in a table's cell."""
    without_roles = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text)
    code = re.sub(r"``(.+?)``", lambda found: f"`{found[1]}`".replace("|", "\\|"), without_roles)
    return re.sub(r"(?<=\S)  +(?=\S)", " ", code)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
