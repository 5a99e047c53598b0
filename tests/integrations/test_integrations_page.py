"""docs/extending.md: its code is that of the example, and its commands print what the page shows."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHOLE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
PAGE = WHOLE.partition("\n## Your own trainer\n")[2].partition("\n## ")[0]
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(CONSOLE,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
SOURCE = re.compile(r"# (examples/\S+)\n")


def pattern_of(shown: str) -> str:
    """Return a pattern of an output, in which … stands for some text, or on a line alone for some lines."""
    lines = [line.split("…") for line in shown.splitlines()]
    parts = [
        r"(?:.*\n)*?" if line == ["", ""] else r".*?".join(map(re.escape, line)) + r"[ ]*\n" for line in lines
    ]
    return re.sub(r"(?:\\ ){5,}", r"[ ]*", "".join(parts))  # alignment beside a number of any width


def commands() -> list[tuple[str, str]]:
    """Return the page's commands, each with the output that is shown."""
    _, *blocks = re.split(r"^\$ ", CONSOLE, flags=re.MULTILINE)
    return [(command, shown) for command, _, shown in (block.partition("\n") for block in blocks)]


def test_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    """They run one after the other at the top of a copy of what they name."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "PATH": path,
        "COLUMNS": "80",
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"),
    }
    for command, shown in commands():
        ran = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stderr
        assert re.fullmatch(pattern_of(shown), ran.stdout), ran.stdout


@pytest.mark.parametrize("block", CODE, ids=lambda block: block.splitlines()[1].strip()[:40])
def test_code_of_the_page_is_in_the_example(block: str) -> None:
    """Each part between blank lines is in the named file; other code is at least Python."""
    named = SOURCE.match(block)
    if named is None:
        ast.parse(block)
        return
    source = (ROOT / named[1]).read_text(encoding="utf-8")
    for part in block[named.end() :].strip("\n").split("\n\n"):
        assert part in source


def test_page_links_what_exists() -> None:
    """Every relative link names a file of the repository."""
    for target in re.findall(r"\]\((?!http)([^)#]+)", WHOLE):
        assert (ROOT / "docs" / target).exists(), target
