"""The programs of docs/tutorial.md, by section: theirs and ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from otel_rollout.base.environment import PREFIXES
from tests.page_session import blocks_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"


def section(title: str) -> str:
    """Return the text of a section of the page."""
    return PAGE.read_text().partition(f"\n### {title}\n")[2].partition("\n### ")[0]


def programs(title: str) -> tuple[str, str]:
    """Return their program and ours."""
    theirs, ours = (block.text for block in blocks_of(section(title)) if block.language == "python")
    return theirs, ours


def variables(title: str) -> dict[str, str]:
    """Return the variables that a section's shell block sets for our program."""
    (shell,) = (block.text for block in blocks_of(section(title)) if block.language == "bash")
    words = shell.replace("export ", "").split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def run(program: str, directory: Path, python: str | Path = sys.executable, **given: str) -> str:
    """Run a program in a folder, with a spool of its own that is kept; return what it printed."""
    path = directory / "program.py"
    path.write_text(program)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    own = {"OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"), "OTEL_ROLLOUT_KEEP": "true"}
    ran = subprocess.run(
        [python, path], cwd=directory, env={**kept, **own, **given}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
