"""Ask make for the Makefile's targets."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make with arguments that build nothing."""
    return subprocess.run(
        ["make", "--no-print-directory", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def targets() -> set[str]:
    """Return the names of all targets that a person can type."""
    rules = make("--print-data-base", "--dry-run", "--question", "clean").stdout
    return {*re.findall(r"^([\w-]+):", rules, re.MULTILINE)}
