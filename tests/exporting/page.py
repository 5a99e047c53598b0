"""The Python of docs/extending.md, as a module and a test of it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def python_blocks() -> list[str]:
    """Return the exporter, the exporter that appends, and the test of the exporter."""
    section = PAGE.read_text().partition("\n## Your own exporter\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


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
