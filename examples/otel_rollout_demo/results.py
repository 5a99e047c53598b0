"""Show the results of a run: trajectories, rewards and spans per training step."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from rich.console import Console
from rich.table import Table
from rich.text import Text

from otel_rollout import Report, StepKey
from otel_rollout.look.fitted_table import print_sentence
from otel_rollout_demo.console import print_plain


@dataclass
class BatchResult:
    """Results of a batch."""

    step: int
    validate: bool
    rewards: list[float] = field(default_factory=list)
    tool_errors: int = 0  # calls of tools that failed, within trajectories
    unparsable_calls: int = 0  # calls that the parser could not read
    failed: int = 0  # trajectories that raised

    @property
    def title(self) -> str:
        """The batch's name in the table."""
        return "validation" if self.validate else f"step {self.step}"

    @property
    def mean_reward(self) -> str:
        """The mean reward, as text; a dash before the first trajectory has ended."""
        return f"{fmean(self.rewards):.2f}" if self.rewards else "–"


def results_table(results: list[BatchResult], report: Report) -> Table:
    """Return a table with one row per batch.

    Args:
        results: what the trainer knows.
        report: what was recorded and delivered.
    """
    table = Table(title="Trajectories, and their spans", title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    failures = ["failed"] if any(result.failed for result in results) else []
    errors = ("tool errors", "unparsable calls")
    for heading in ("trajectories", *failures, "reward", *errors, "spans", "delivered"):
        table.add_column(heading, justify="right", width=max(map(len, heading.split())))
    for result in results:
        count = report.by_step.get(StepKey(str(result.step), result.validate))
        table.add_row(
            result.title,
            str(len(result.rewards) + result.failed),
            *([str(result.failed)] if failures else []),
            result.mean_reward,
            str(result.tool_errors),
            str(result.unparsable_calls),
            str(count.recorded if count else 0),
            str(count.delivered if count else 0),
        )
    return table


def print_totals(console: Console, report: Report, seconds: float) -> None:
    """Print how many spans were recorded, delivered and lost, and what went wrong."""
    parts = [f"{report.recorded} spans recorded in {seconds:.0f} s"]
    for name, exporter in report.exporters.items():
        parts.append(f"{exporter.delivered} delivered to {name}")
        if exporter.rejected:
            parts.append(f"[yellow]{exporter.rejected} rejected[/]")
        if exporter.pending:
            parts.append(f"[yellow]{exporter.pending} waiting on disk[/]")
    parts.extend(f"[yellow]{number} dropped ({reason})[/]" for reason, number in report.dropped.items())
    parts.append(f"[bold {'red' if report.lost else 'green'}]lost: {report.lost}[/]")
    print_sentence(console, Text.from_markup(", ".join(parts)))
    for name, exporter in report.exporters.items():
        if exporter.problem:
            print_plain(console, f"{name}: {exporter.problem}")
    if any(exporter.pending for exporter in report.exporters.values()):
        print_plain(console, f"Nothing is lost: pending spans are kept on disk in {report.directory}")
