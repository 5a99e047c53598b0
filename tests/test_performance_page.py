"""docs/ show what was measured."""

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


def cells(table: str, *beginnings: str) -> list[list[str]]:
    """Return the cells of the rows of a table that begin with each text."""
    rows = TABLES[table].rows(TABLES[table].figures(RESULT))
    return [next(row for row in rows if row[0].startswith(beginning)) for beginning in beginnings]


def whole(figure: str) -> str:
    """Return a figure without digits behind the point."""
    return f"{float(figure):.0f}"


def among(outage: list[list[str]], beginning: str) -> tuple[str, str]:
    """Return the smallest and the greatest median of the outage, and the longest operation."""
    p50, longest = (
        [
            int(part.replace(",", ""))
            for row in outage
            if row[0].startswith(beginning)
            for part in row[at].split(" / ")
        ]
        for at in (2, 3)
    )
    return f"{min(p50)} to {max(p50)}", f"{max(longest):,}"


def told_by_the_readme() -> list[str]:
    """Return what README.md says of costs, from the last run."""
    (off,) = cells("hot_path", "otel-rollout, off")
    ours = next(row for row in TABLES["hot_path"].rows(RESULT["hot_path"]) if row[0] == "otel-rollout")
    mlflow, weave = (row[1].partition("(")[2].partition(".")[0] for row in cells("peers", "mlflow", "weave"))
    (step,) = cells("rollout_step", "otel-rollout → MLflow")
    to_mlflow, to_weave = cells("delivery", "MLflow server: otel", "Weave's server: otel")
    return [
        f"takes {whole(ours[1])} µs of the caller's CPU: half of a bare",
        f"`mlflow.trace` takes {mlflow} times as long as our operation, `weave.op` {weave} times",
        f"Switched off, a call takes {off[1]} µs",
        f"becomes {step[1].strip('+%')}% slower",
        f"{to_mlflow[5]} µs of CPU for a span to MLflow, {to_weave[5]} µs to Weave",
    ]


def told_by_the_page() -> list[str]:
    """Return what docs/performance.md says in sentences, from the last run."""
    lines, text, code, much, much_code, few_ids, ids, nested, items, async_items = (
        whole(row[3])
        for row in cells(
            "operations",
            *("async, 2 KB of text in lines", "async, 2 KB of text", "async, 2 KB of code"),
            *("async, 64 KB of text", "async, 64 KB of code", "async, 1,024 token", "async, 32,768 token"),
            *("nested", "generator", "async generator"),
        )
    )
    growth = TABLES["growth"].rows(RESULT["growth"])
    costs, shares = ([row[at] for row in growth] for at in (1, 2))
    forwarder = [row[4] for row in growth if row[4]]
    longest = max(float(row[4]) for row in TABLES["stalls"].rows(RESULT["rollout_step"]))
    outage = TABLES["outage"].rows(RESULT["outage"])
    p50, most = zip(
        *(among(outage, beginning) for beginning in ("otel-rollout", "verl, mlflow")), strict=True
    )
    reached = [row[3] == "yes" for row in TABLES["goals"].rows(RESULT)]
    return [
        f"2 KB of text {text} to {lines} µs, of code {code} µs",
        f"64 KB of text {much} µs, of code {much_code} µs",
        f"1,024 token ids {few_ids} µs, 32,768 of them {ids} µs",
        f"Two nested spans {nested} µs; a generator of 10 items {items} µs",
        f"an asynchronous one {async_items} µs",
        f"costs {min(costs)} to {max(costs)} µs",
        f"{min(shares)} to {max(shares)} of a bare SDK span there",
        f"The forwarder takes {forwarder[0]} to {forwarder[-1]} µs",
        f"holds the event loop for at most {longest:.1f} ms",
        f"takes {p50[0]} µs (p50), before, during and after the outage, and {most[0]} µs at most",
        f"of verl's mlflow backend {p50[1]} µs, and {most[1]} µs at most",
        f"its goals: {sum(reached)} of {len(reached)} are reached",
    ]


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        *(("README.md", sentence) for sentence in told_by_the_readme()),
        *(("docs/performance.md", sentence) for sentence in told_by_the_page()),
    ],
)
def test_a_sentence_has_the_figures_of_the_last_run(page: str, sentence: str) -> None:
    """What pages say of costs without a table follows from the results, too."""
    assert sentence in " ".join((ROOT / page).read_text().split())


def test_plots_that_pages_show_are_there() -> None:
    """The performance page shows no image that no run has drawn."""
    page = (ROOT / "docs" / "performance.md").read_text()
    shown = [line.partition("](")[2].rstrip(")") for line in page.splitlines() if line.startswith("![")]
    assert len(shown) == len(report.PLOTS)
    assert {place for place in shown if not (ROOT / "docs" / place).is_file()} == {
        f"images/performance-{plot.name}.png" for part, plot in report.PLOTS.items() if part not in RESULT
    }
