"""docs/tutorial.md, followed with nothing but the wheel and the extra that its first block names."""

from __future__ import annotations

import re
from pathlib import Path

from tests.package.test_package import installed
from tests.test_tutorial import PAGE, followed_by, reader


def test_tutorial_needs_no_more_than_it_installs(tmp_path: Path) -> None:
    """Every block prints what the page says in an environment that has the wheel with one extra."""
    (extra,) = re.findall(r"pip install '\./otel-rollout\[(\w+)\]'", PAGE.read_text())
    python = installed(tmp_path / "venv", extra=extra)
    folder = tmp_path / "folder"
    folder.mkdir()
    shell = reader(folder, python)
    for name in ("PYTHONPATH", "PYTHONHOME"):
        shell.variables.pop(name, None)
    assert followed_by(shell) > 60
