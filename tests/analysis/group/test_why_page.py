"""docs/why.md shows what `group` prints of the demo."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from otel_rollout.cli import app

WHY = (Path(__file__).parents[3] / "docs" / "why.md").read_text(encoding="utf-8")


def test_group_of_the_demo_is_printed_as_why_shows_it(demo_table: Path) -> None:
    """The page may leave out lines, and ends of lines, where it has `…`; it changes none, nor their order."""
    (command,) = re.findall(r"^otel-rollout (group \S+) +# the tree, on the terminal$", WHY, re.M)
    (shown,) = re.findall(r"A group of `make demo`, shortened:\n\n```\n(.*?)```", WHY, re.S)
    ran = CliRunner().invoke(app, [*command.split(), "--from", str(demo_table)], env={"COLUMNS": "120"})
    unframed = re.sub(r"^│ (.*\S) +│$", r"\1", ran.output, flags=re.M)
    lines = [
        re.escape(line.removesuffix("…")) + ("" if line.endswith("…") else " *$")
        for line in shown.splitlines()
    ]
    assert re.search("^" + "(?s:.*?)^".join(lines), unframed, re.M), ran.output
