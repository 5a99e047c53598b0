"""The Collector's configurations name what our spans have, and components that they define.

No Collector runs here; tests/collector has a real one.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.collector.support import CONFIGURATIONS
from tests.collector.test_configurations import COMBINATIONS

ROOT = Path(__file__).parents[1]
ATTRIBUTE = re.compile(r'attributes\["([^"]+)"\]')
OF_BACKENDS = ("langfuse.", "wandb.", "mlflow.traceTag.")
"""Names that a backend reads, and our spans do not have."""
OF_MANY = ("rollout.score.", "llm.input_messages.", "gen_ai.prompt.")
"""Beginnings of names with a score's name or a message's number."""
OF_THE_GATEWAY = {"rollout.redacted.name", "rollout.redacted.message"}
"""Names of parts of an event while the gateway redacts them."""


def texts_of_the_source() -> set[str]:
    """Return every text in the package and in the exporters."""
    paths = [path for folder in ("otel_rollout", "exporters") for path in (ROOT / folder).rglob("*.py")]
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text())))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_configurations_read_attributes_that_our_spans_have() -> None:
    """A name that changes in the source changes in the configurations, too."""
    used = {
        name
        for path in CONFIGURATIONS.rglob("*.yaml")
        for name in ATTRIBUTE.findall(path.read_text())
        if not name.startswith((*OF_BACKENDS, *OF_MANY))
    }
    assert len(used) > 15
    assert used - OF_THE_GATEWAY <= (texts := texts_of_the_source())
    assert all(any(text.startswith(beginning) for text in texts) for beginning in OF_MANY)


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_pipelines_name_components_that_are_defined(combination: str) -> None:
    """In each combination of files that the documentation names."""
    defined: dict[str, set[str]] = {}
    used: dict[str, set[str]] = {}
    for name in ["base", *combination.split()]:
        read: dict[str, Any] = yaml.safe_load((CONFIGURATIONS / f"{name}.yaml").read_text())
        for kind in ("receivers", "processors", "exporters", "connectors"):
            defined.setdefault(kind, set()).update(read.get(kind) or {})
        for pipeline in (read.get("service", {}).get("pipelines") or {}).values():
            for kind, names in pipeline.items():
                used.setdefault(kind, set()).update(names or [])
    assert used
    for kind, names in used.items():
        assert names <= defined[kind] | defined["connectors"], kind
