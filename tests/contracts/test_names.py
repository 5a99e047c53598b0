"""A name has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = {"State"}
"""Names of several classes: each room's `state.py` has a `State`, which nothing imports."""


def test_no_two_public_classes_have_one_name() -> None:
    """The word belongs to one room; the class of another room says what it is of."""
    found = defaultdict(set)
    for path in (
        path for folder in ("otel_rollout", "exporters", "autoload") for path in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(path.relative_to(ROOT).as_posix())
    assert {name: places for name, places in found.items() if len(places) > 1 and name not in SHARED} == {}
