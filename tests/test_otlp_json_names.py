"""Only ``otel_rollout.otlp`` knows how OTLP/JSON names its fields and encodes its values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OTLP = ROOT / "otel_rollout" / "otlp"
PACKAGES = (ROOT / "otel_rollout", ROOT / "exporters", ROOT / "examples" / "otel_rollout_demo")
MODULES = [path for package in PACKAGES for path in package.rglob("*.py") if OTLP not in path.parents]
NAMES = re.compile(
    r"(?:resource|scope)Spans|(?:string|bool|int|double|bytes|array|kvlist)Value|\w*[tT]imeUnixNano|traceId"
    r"|(?:parentS|s)panId|traceState|schemaUrl|dropped(?:Attributes|Events|Links)Count|\"key\": ?"
)
"""Names of fields that no other format here has, and the beginning of an attribute as text."""


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each field of OTLP/JSON in a module's strings; docstrings may name fields."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)) and id(node) not in prose:
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            for found in NAMES.findall(text):
                yield node.lineno, found


def test_only_otlp_names_fields_of_otlp_json() -> None:
    """No other module walks OTLP/JSON by key, or writes it."""
    found = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in MODULES
        for line, name in names_in(path.read_text(encoding="utf-8"))
    }
    assert len(MODULES) > 200
    assert not found, "read and write OTLP/JSON with otel_rollout.otlp:\n" + "\n".join(sorted(found))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('span["startTimeUnixNano"]', "startTimeUnixNano"),
        ("data.get('resourceSpans', ())", "resourceSpans"),
        ("HEAD = b'{\"scopeSpans\":[{'", "scopeSpans"),
        ('f"{{\\"key\\":{name}"', '"key":'),
        ('{"stringValue": value}', "stringValue"),
        (
            'def parent(span):\n    """Find the parentSpanId."""\n    return span["parentSpanId"]',
            "parentSpanId",
        ),
    ],
)
def test_name_in_any_kind_of_string_is_found_once(source: str, name: str) -> None:
    """The check sees keys, byte patterns and f-strings, and passes over docstrings."""
    assert [found for _, found in names_in(source)] == [name]
