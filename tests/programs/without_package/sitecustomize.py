"""Make ``otel_rollout`` impossible to import, by this folder on the PYTHONPATH."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any


class Blocked(MetaPathFinder):
    """Raises for the package, and finds nothing else."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.partition(".")[0] == "otel_rollout":
            raise ModuleNotFoundError(f"No module named {fullname!r}")


sys.meta_path.insert(0, Blocked())
