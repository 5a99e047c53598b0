"""The Python of docs/exporters.md, as a module and a test of it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "exporters.md"


def python_blocks() -> list[str]:
    """Return the exporter, the exporter that appends, and the test of the exporter."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@cache
def module() -> dict[str, Any]:
    """Run the blocks with exporters, and return their names."""
    namespace: dict[str, Any] = {"__name__": "tests.exporting.page_example"}
    for block in python_blocks()[:2]:
        exec(compile(block, str(PAGE), "exec"), namespace)
    return namespace


def example() -> Any:
    """Return the page's exporter."""
    return module()["LogbookExporter"]
