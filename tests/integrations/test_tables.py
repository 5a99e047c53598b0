"""The tables of patched modules name what patches them, and nothing else."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize("framework", ["trl", "verifiers", "verl", "vllm"])
def test_every_hook_is_in_the_table_and_every_entry_patches(framework: str) -> None:
    """A module that no entry names is not imported, so its hooks would have no effect."""
    package = f"otel_rollout.integrations.{framework}"
    tables = importlib.import_module(f"{package}.patched_modules" if framework == "trl" else package)
    listed = {
        (importlib.import_module(name, package), module)
        for table in (tables.CONFIGURED, getattr(tables, "UNCONFIGURED", {}))
        for module, names in table.items()
        for name in names
    }
    hooks = set(tables.seams._hooks)
    assert hooks <= {(integration.__name__, module) for integration, module in listed}
    for integration, module in listed:
        assert (integration.__name__, module) in hooks or hasattr(integration, "install")
