"""Names of attributes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from otel_rollout.base import semconv

ROOT = Path(__file__).parents[2]
SHORT = "|".join(map(semconv.short_name, semconv.IDENTITY))
NAME = re.compile(rf"\b(rollout|tags|attributes)\.({SHORT})\b")


def test_names_of_the_identity_are_written_in_one_module() -> None:
    """No other module of the product has such a name, or its tag, in a string."""
    found = {
        path.relative_to(ROOT).as_posix(): node.value
        for folder in ("otel_rollout", "exporters", "examples/otel_rollout_demo")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and NAME.search(str(node.value))
    }
    assert set(found) == {"otel_rollout/base/semconv.py"}, found


SET_BY_THE_GATEWAY = ("rollout.redacted.", "rollout.score.range")
"""Attributes that the Collector's gateway makes by itself."""


def test_collector_reads_attributes_that_exist() -> None:
    """Semconv declares each ``rollout.*`` attribute of the Collector's configurations."""
    declared = {value for value in vars(semconv).values() if isinstance(value, str)}
    prefixes = (semconv.SCORE_PREFIX, *SET_BY_THE_GATEWAY)
    found = {
        name
        for path in (ROOT / "collector-config").rglob("*.yaml")
        for name in re.findall(r"[\"'](rollout\.[a-z_.]+)[\"']", path.read_text())
    }
    assert semconv.STEP in found
    assert {name for name in found if not name.startswith(prefixes)} <= declared


def test_collector_lets_no_score_replace_the_identity_in_mlflow() -> None:
    """The configuration for MLflow drops scores named like an identity's attribute."""
    text = (ROOT / "collector-config" / "to-mlflow.yaml").read_text()
    (names,) = re.findall(r"score\\\\.\(([a-z_|]+)\)", text)
    identity = {semconv.short_name(key) for key in semconv.IDENTITY} - {
        semconv.short_name(semconv.PROJECT_NAME)
    }
    assert set(names.split("|")) == identity
