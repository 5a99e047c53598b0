"""Every block of the documentation is run: by a test that ways.py names, or here, as a reader types it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.analysis import generated_run
from tests.docs_site.documents import ROOT, Block, blocks
from tests.docs_site.reader import Reader
from tests.docs_site.ways import ROWS, SCRATCH, TYPED, By, DevelopersRun, Scratch, Skipped, way_of
from tests.make_targets import targets

BLOCKS = blocks()
MAX_SKIPPED = 6
"""Blocks that no test runs. Each further one needs a better reason than the last."""
TYPED_PAGES = sorted({block.page for block in BLOCKS if (row := way_of(block)) and row[1] == TYPED})


@pytest.fixture(scope="module")
def generated_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of two generated runs of 64 steps."""
    place = tmp_path_factory.mktemp("generated") / "rollouts"
    for run_id, seed in (("older", "1"), ("run-4e91d719a109", "2")):
        size = ["--trajectories", "1024", "--steps", "64"]
        generated_run.main([str(place), *size, "--run-id", run_id, "--seed", seed])
    return place


def test_every_block_has_a_way() -> None:
    """A new block needs a row in ways.py."""
    missing = [f"{block.page}: {block.first_line}" for block in BLOCKS if way_of(block) is None]
    assert missing == []


def test_every_row_is_of_a_block() -> None:
    """A row whose block is gone goes, too."""
    used = {(block.page, row[0]) for block in BLOCKS if (row := way_of(block))}
    assert {(page, text) for page, rows in ROWS.items() for text in rows} - used == set()
    assert set(SCRATCH) <= set(TYPED_PAGES)


def test_named_tests_exist() -> None:
    """Each test that runs a block is defined in the module that its row names."""
    named = {
        test for rows in ROWS.values() for way in rows.values() if isinstance(way, By) for test in way.tests
    }
    for test in named:
        path, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M), test


def test_few_blocks_are_skipped() -> None:
    """Each has a reason."""
    skipped = [way for rows in ROWS.values() for way in rows.values() if isinstance(way, Skipped)]
    assert len(skipped) <= MAX_SKIPPED
    assert all(way.reason for way in skipped)


def test_commands_of_developers_exist() -> None:
    """They name targets of the Makefile, and modules of the repository."""
    known = targets()
    for block in BLOCKS:
        row = way_of(block)
        if row is None or not isinstance(row[1], DevelopersRun):
            continue
        for line in block.text.splitlines():
            command, *words = line.partition("#")[0].split()
            if command == "make":
                assert words[0] in known, line
            elif command.endswith("python"):
                module = words[words.index("-m") + 1].replace(".", "/")
                assert (ROOT / f"{module}.py").is_file(), line


def typed(page: str, *languages: str) -> list[Block]:
    """Return the blocks of a page that are typed here."""
    return [
        block
        for block in BLOCKS
        if block.page == page and block.language in languages and (row := way_of(block)) and row[1] == TYPED
    ]


@pytest.mark.parametrize("page", TYPED_PAGES)
def test_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The shell's in order, then those of Python as one program. No variable is unknown."""
    scratch = SCRATCH.get(page, Scratch())
    if scratch.table:
        table: Path = request.getfixturevalue(f"{scratch.table}_table")
        shutil.copytree(table, tmp_path / "rollouts")
        if (table.parent / "spool").is_dir():
            shutil.copytree(table.parent / "spool", tmp_path / "spool")
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, scratch)
    for block in typed(page, "bash", "console"):
        reader.type_shell(block.text)
    python = [block.text for block in typed(page, "python")]
    if python:
        reader.type_python(python)
    if any("export" in block.text for block in typed(page, "bash")):
        reader.check_variables()
