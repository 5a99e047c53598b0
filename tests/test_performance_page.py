"""README.md and docs/ show what was measured."""

from __future__ import annotations

import json

import pytest

from benchmarks import report
from benchmarks.tables import ROOT, TABLES

RESULT = json.loads(report.RESULTS.read_text())
SHOWN = [(name, page) for name, table in TABLES.items() if table.is_in(RESULT) for page in table.pages]


@pytest.mark.parametrize(("name", "page"), SHOWN)
def test_a_table_has_the_figures_of_the_last_run(name: str, page: str) -> None:
    """A page's table is what ``python -m benchmarks.report`` writes."""
    written = f"<!-- bench:{name} -->\n{TABLES[name].as_markdown(RESULT)}<!-- bench:end -->\n"
    assert written in (ROOT / page).read_text(), "write it anew: python -m benchmarks.report"


def test_plots_that_pages_show_are_there() -> None:
    """The performance page shows no image that no run has drawn."""
    page = (ROOT / "docs" / "performance.md").read_text()
    shown = [line.partition("](")[2].rstrip(")") for line in page.splitlines() if line.startswith("![")]
    assert len(shown) == len(report.PLOTS)
    assert {place for place in shown if not (ROOT / "docs" / place).is_file()} == {
        f"images/performance-{plot.name}.png" for part, plot in report.PLOTS.items() if part not in RESULT
    }
