"""Implement the command ``otel-rollout health``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from otel_rollout.base.printable import in_one_line
from otel_rollout.base.setting_parsers import listed
from otel_rollout.cli.dumps import reading, source_options
from otel_rollout.cli.page_output import HtmlOption, JsonOption, answer
from otel_rollout.cli.sources import as_table
from otel_rollout.cli.table import FromOption, NewestRunOption, StepOption
from otel_rollout.look.analysis.health import checks
from otel_rollout.look.analysis.health.findings import ORDER, Health
from otel_rollout.look.analysis.report.page import page_of_health
from otel_rollout.look.analysis.run_choice import run_of, source_said
from otel_rollout.look.conversation.formatting import command, counted
from otel_rollout.look.fitted_table import print_sentence
from otel_rollout.table import filters
from otel_rollout.table.query import Engine

_MARKS: Final = {"healthy": ("✓", "green"), "unhealthy": ("✗", "bold red"), "unobserved": ("?", "yellow")}
_SHOWN: Final = 5
"""Trajectories of a finding that the terminal names."""
_WHY: Final = "--all says what is missing"
"""Printed for a dump in place of ways to observe more, which a dump does not have."""
_UNHEALTHY: Final = 1
"""Exit status if a check has found something."""

OnlyOption = Annotated[
    str | None, typer.Option("--only", help="Checks to run, with commas.", metavar="NAME,…")
]
SkipOption = Annotated[
    str | None, typer.Option("--skip", help="Checks not to run, with commas.", metavar="NAME,…")
]


@reading
def health(
    from_: FromOption = None,
    run: NewestRunOption = None,
    step: StepOption = None,
    only: OnlyOption = None,
    skip: SkipOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Print every check, healthy ones too.")] = False,
    json: JsonOption = False,
    html: HtmlOption = None,
) -> None:
    """Check whether a run is to be trusted: rewards, replies, tools, siblings, contexts, weights, processes.

    Each check is healthy, unhealthy, or unobserved: what was not recorded,
    or is too little, is not healthy. The exit status is 1 if one is unhealthy.
    """
    if html and json:
        raise typer.BadParameter("--html and --json exclude each other.")
    named = _names(only, "--only"), _names(skip, "--skip")
    steps = None if step is None else filters.steps(step, "--step")
    with as_table(from_) as (store, location):
        engine = Engine(store.open())
        chosen = checks.chosen(*named, store.location.uri)
        found = checks.health_of(engine, run_of(engine, run), chosen, steps)
        options = source_options(from_, run)
        show = partial(_show, found, source_said(engine, run, location), options, is_all=all_)
    answer(html, json, partial(page_of_health, found), found.as_json, show)
    if found.is_unhealthy:
        raise typer.Exit(_UNHEALTHY)


def _names(text: str | None, option: str) -> list[str]:
    """Return the names of checks in an option's text."""
    if text is None:
        return []
    names = listed(text)
    if not names:
        raise typer.BadParameter(f"{option} names no check; `otel-rollout health --all` lists them")
    return names


def _show(health: Health, location: str, options: Mapping[str, str | None], is_all: bool) -> None:
    """Print unhealthy checks, what the unobserved ones need, and the number of the other checks.

    Args:
        health: the findings of the checks.
        location: name of the source.
        options: the options that name run and source, for the commands that are printed.
        is_all: whether healthy checks are printed, too.
    """
    console = Console(highlight=False)
    left = []
    ways: dict[str, list[str]] = {}
    # On the terminal, a person looks at the last lines.
    for finding in sorted(health.findings, key=lambda each: -ORDER.index(each.status)):
        mark, style = _MARKS[finding.status]
        if is_all or finding.is_told:
            print_sentence(console, Text(f"{mark}  {in_one_line(finding.name)}", style))
            console.print(Padding.indent(Text(in_one_line(finding.message)), 3))
            if finding.evidence:
                opening, found = finding.look_at
                shown = command(opening, found[:_SHOWN], options)
                console.print(Text(f"   {shown}", "dim"), soft_wrap=True)
        elif finding.status == "unobserved" and (way := checks.WAYS.get(finding.name, "")):
            why = finding.message if finding.is_little else _WHY if health.is_of_dump else way
            ways.setdefault(why, []).append(finding.name)
        else:
            left.append(finding.status)
    if ways:
        console.print(Text("\nunobserved:" if health.is_of_dump else "\nnot observed yet:", "bold"))
    for way, names in ways.items():
        console.print(Padding.indent(Text(f"{', '.join(names)}\n→ {way}", "yellow"), 3))
    name = in_one_line(health.run.name)
    print_sentence(console, Text(f"\n{name}: {health.checked}, {health.verdict}"))
    if left:
        of_them = f" ({number} unobserved)" if (number := left.count("unobserved")) else ""
        console.print(Text(f"{counted(len(left), 'other check')}{of_them}: --all", "dim"))
    print_sentence(console, Text(f"from {in_one_line(location)}", "dim"))
