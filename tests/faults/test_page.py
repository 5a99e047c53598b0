"""Test that docs/reliability.md links existing tests."""

from __future__ import annotations

import re

from tests.faults.job import ROOT

PAGE = ROOT / "docs" / "reliability.md"


def test_every_test_that_the_page_names_exists() -> None:
    """A link whose text is the name of a test leads to a file with that test."""
    links = re.findall(r"\[([^\]]+)\]\(\.\./(tests/[^)]+)\)", PAGE.read_text())
    assert len(links) > 40
    for text, file in links:
        source = (ROOT / file).read_text()
        assert f"def {text}(" in source or not text.startswith("test_") or text.endswith(".py"), text
