"""Change every variable of the process; print those that a forked child and a reset process have changed.

Usage: ``python -m tests.programs.changed_variables MODULE ...`` with the modules that hold rooms' states. The
output is JSON: names of variables by what is true of them.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pickle
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import otel_rollout.record.runtime  # noqa: F401 - it resets states in forked children
from otel_rollout.base.state import reset

CHANGED = MagicMock()
STATES: dict[str, Any] = {module: importlib.import_module(module).state for module in sys.argv[1:]}


def variables() -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    """Yield name, state and field of each variable."""
    for module, state in STATES.items():
        for field in dataclasses.fields(state):
            yield f"{module}.{field.name}", state, field


def changed() -> list[str]:
    """Return the variables that have the value that this program gave them."""
    return [name for name, state, field in variables() if getattr(state, field.name) is CHANGED]


def main() -> None:
    """Change the variables, fork, reset, and print."""
    for _, state, field in variables():
        setattr(state, field.name, CHANGED)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(changed()).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as of_child:
        in_child = json.load(of_child)
    reset()
    found = {
        "variables": [name for name, _, _ in variables()],
        "per process": [name for name, _, field in variables() if "is_per_process" in field.metadata],
        "wired": [name for name, _, field in variables() if "is_wired" in field.metadata],
        "changed in a child": in_child,
        "changed after reset()": changed(),
        "pickled by reference": [
            m for m, state in STATES.items() if pickle.loads(pickle.dumps(state)) is state
        ],
        "slotted": [module for module, state in STATES.items() if not hasattr(state, "__dict__")],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
