"""The pages of the documentation, and the blocks in them that a reader would type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", ".github/SECURITY.md", "examples/verl/README.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
_FENCED = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """Code in a page.

    Attributes:
        page: the page's path in the repository.
        language: ``bash``, ``console`` or ``python``; a session that shows its output is ``console``.
        text: what is between the fences, without their indentation.
    """

    page: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        """What identifies the block for a person."""
        return next(line for line in self.text.splitlines() if line.strip())


def blocks() -> list[Block]:
    """Return the blocks of all pages that a reader would type."""
    found = []
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        for fenced in _FENCED.finditer(path.read_text(encoding="utf-8")):
            text = "".join(line.removeprefix(fenced["indent"]) for line in fenced["text"].splitlines(True))
            language = "console" if text.startswith("$ ") else fenced["language"]
            if language in ("bash", "console", "python"):
                found.append(Block(page, language, text))
    return found
