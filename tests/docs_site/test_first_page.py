"""docs/index.md: its commands lead a new user from the installation to a trajectory in the browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs_site.documents import blocks
from tests.docs_site.reader import Reader
from tests.docs_site.ways import Scratch
from tests.web.served import Served, hrefs

PAGE = "docs/index.md"
_INSTALL, RUN, TERMINAL, *_ = (
    block.text for block in blocks() if (block.page, block.language) == (PAGE, "bash")
)
PROGRAM, *_ = (block.text for block in blocks() if (block.page, block.language) == (PAGE, "python"))


def test_first_page_ends_with_a_trajectory_in_the_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The links that the page names lead to the conversation whose tool failed."""
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, Scratch(files={"first.py": PROGRAM}), shutdown_timeout=60)
    variables, program, view = RUN.splitlines()
    assert view == "otel-rollout view --open"
    reader.type_shell(variables)
    assert "14 spans delivered to the table" in reader.type_shell(program)
    assert "ZeroDivisionError: integer division" in reader.type_shell(TERMINAL)
    with Served(tmp_path / "rollouts", tmp_path) as server:
        page = "/"
        for kind in ("/run?", "/step?", "/group?"):
            page = hrefs(server.get(page), kind)[0]
        siblings = server.get(page)
        assert "3 siblings" in siblings.text
        failed = next(link for link in hrefs(siblings, "/trajectory?") if link.endswith("1%2F0%2F2"))
        assert "ZeroDivisionError: integer division" in server.get(failed).text
