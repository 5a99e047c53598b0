"""The notebook of the examples runs from its first cell to its last, on the demo's table."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "rollout_table.ipynb"


def code_cells() -> list[str]:
    """Return the notebook's code, a text for each cell."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last expression, which a notebook shows."""
    *statements, last = ast.parse(cell).body
    is_shown = isinstance(last, ast.Expr)
    rest = statements if is_shown else [*statements, last]
    exec(compile(ast.Module(rest, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if is_shown else None


def test_every_cell_runs(demo_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shows something, and the scores that it writes are read back."""
    shutil.copytree(demo_table, tmp_path / "rollouts")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = [run(cell, names) for cell in code_cells()]
    assert all(value is not None for value in shown)
    as_html = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(as_html) >= 6
    assert all("<" in html for html in as_html)
    gave_up = names["table"].scores.filter(name="gave_up").dicts()
    assert {row["label"] for row in gave_up} == {"True", "False"}
    assert len(gave_up) == len(names["frame"])
    assert len(names["conversations"]) == 30
    assert ("1/29/2", "1/29/0") in shown[-1]


def test_notebook_is_saved_without_output() -> None:
    """Output of another machine would differ with each save."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
