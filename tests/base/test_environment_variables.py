"""Prefixes of environment variables."""

from __future__ import annotations

import ast
from pathlib import Path

from otel_rollout.base.environment_variables import DELIVERY_PREFIXES, PREFIXES

ROOT = Path(__file__).parents[2]


def test_prefixes_are_listed_in_one_module() -> None:
    """No other module of the package or of an exporter has a prefix as a string of its own."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("otel_rollout", "exporters")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in DELIVERY_PREFIXES
    }
    assert found == {"otel_rollout/base/environment_variables.py"}


def test_exporters_get_at_least_the_variables_of_every_process() -> None:
    """A forwarder has the variables that Ray's workers have."""
    assert set(PREFIXES) < set(DELIVERY_PREFIXES)
