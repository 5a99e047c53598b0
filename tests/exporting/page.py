"""The example of docs/exporters.md, as a class."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "exporters.md"


@cache
def example() -> Any:
    """Run the first Python block of the page, and return its exporter."""
    match = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert match is not None
    namespace: dict[str, Any] = {"__name__": "tests.exporting.page_example"}
    exec(compile(match[1], str(PAGE), "exec"), namespace)
    return namespace["LogbookExporter"]
