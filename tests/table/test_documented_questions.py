"""The questions of docs/table.md have the answers that the page gives, on the demo's data."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import otel_rollout

PAGE = (Path(__file__).parents[2] / "docs" / "table.md").read_text(encoding="utf-8")
QUESTION = re.compile(
    r"^### (?P<title>\d+\. .*?)\n.*?```sql\n(?P<sql>.*?)\n```\n\n(?P<answer>(?:\|[^\n]*\n?)+)",
    re.M | re.S,
)
QUESTIONS = [(found["title"], found["sql"], found["answer"]) for found in QUESTION.finditer(PAGE)]


def cell(value: Any) -> str:
    """Return a value as the page writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())


def read(answer: str) -> list[list[str]]:
    """Return names and rows of a table in Markdown."""
    lines = [[part.strip() for part in line.strip("|").split("|")] for line in answer.splitlines()]
    return [lines[0], *lines[2:]]


def test_page_has_ten_questions() -> None:
    """Each has a number, a query and an answer."""
    assert [title.partition(".")[0] for title, _, _ in QUESTIONS] == [str(n) for n in range(1, 11)]


@pytest.mark.parametrize(("title", "sql", "answer"), QUESTIONS, ids=[title for title, _, _ in QUESTIONS])
def test_answer_is_the_pages(title: str, sql: str, answer: str, demo_table: Path) -> None:
    """The shipped engine and DuckDB give it alike."""
    table = otel_rollout.open_table(str(demo_table))
    rows = table.sql(sql)
    assert [rows.columns, *([cell(value) for value in row.values()] for row in rows)] == read(answer)
    in_duckdb = table.duckdb().execute(sql).fetchall()
    assert [[cell(value) for value in row] for row in in_duckdb] == read(answer)[1:]


README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
COMMANDS = re.search(r"Four questions.*?```bash\n(.*?)```", README, re.S)[1].splitlines()[1:]
ANSWERS = (
    ("0.531", "0.58", "0.831"),
    ("1/7", "0.525", " 1 "),
    ("calculator │      2", "python     │      2"),
    ("8 / 0", "Error: division by zero", "I am not sure how to go on"),
)


@pytest.mark.parametrize(("command", "answers"), list(zip(COMMANDS, ANSWERS, strict=True)))
def test_command_of_the_readme_answers_its_question(
    command: str, answers: tuple[str, ...], demo_table: Path
) -> None:
    """From the table beside the program."""
    program, *arguments = shlex.split(command, comments=True)
    assert program == "otel-rollout"
    ran = subprocess.run(
        [sys.executable, "-c", "from otel_rollout.cli import app; app()", *arguments],
        cwd=demo_table.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert all(answer in ran.stdout for answer in answers), ran.stdout
