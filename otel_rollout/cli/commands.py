"""Define the list of commands: where each is implemented, and the examples at the end of its help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from otel_rollout.base.errors import ReportedError
from otel_rollout.cli.page_output import say

_LOOK: Final = "Look at runs"
DELIVER: Final = "Deliver spans"
MAINTAIN: Final = "Maintain"
"""Headings of the commands in the help."""
_HEADINGS: Final = {"import": DELIVER, "table": MAINTAIN}
"""Headings of the commands in ``_PLACES`` that do not look at runs."""
_PLACES: Final = {
    "demo": "otel_rollout_demo.cli:demo",
    "view": "otel_rollout.cli.view:view",
    "report": "otel_rollout.cli.report:report",
    "health": "otel_rollout.cli.health:health",
    "list": "otel_rollout.cli.table:list_",
    "show": "otel_rollout.cli.show:show",
    "compare": "otel_rollout.cli.show:compare",
    "groups": "otel_rollout.cli.table:groups",
    "group": "otel_rollout.cli.group:group",
    "steps": "otel_rollout.cli.table:steps",
    "timeline": "otel_rollout.cli.timeline:timeline",
    "query": "otel_rollout.cli.table:query",
    "export": "otel_rollout.cli.export:export",
    "import": "otel_rollout.cli.importing:import_",
    "table": "otel_rollout.cli.maintenance:app",
}
"""Subcommand → its module and object, in the order of the help."""
_OF_NAMES: Final = ("show", "compare", "group")
"""Subcommands that take the names of trajectories, which may start with a dash."""
_OF_ALL: Final = ""
"""Key of the examples of ``otel-rollout --help``."""
EXAMPLES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    _OF_ALL: (
        ("report", "which tool fails, and since when"),
        ("groups --no-spread", "which groups teach nothing"),
        ("list --failed", "what failed; then show 60/7/3"),
        ("timeline --step 60", "what held the step"),
    ),
    "demo": (
        ("demo", "into mlflow.db and ./rollouts"),
        ("demo --backend otlp --steps 1", "one step, to a Collector"),
    ),
    "show": (
        ("show", "list the newest run"),
        ("show 12/7/3", "step/sample/rollout"),
        ("show 12/7/3 --html trajectory.html", "the same as a page"),
    ),
    "compare": (
        ("compare 12/7/3 12/7/0", "two siblings"),
        ("compare 12/7/3 12/7/0 --html two.html", "the same as a page"),
    ),
    "list": (
        ("list --step 1-5 --reward '<0.1'", "by step and reward"),
        ("list --failed-tool search --sort reward", "where a tool failed"),
        ("list --failed --format csv -o failed.csv", "as a file"),
    ),
    "groups": (
        ("groups --sort -reward_spread --limit 5", "the widest spread"),
        ("groups --no-spread", "teach nothing"),
        ("groups --step 12 --where 'tool_errors > 0'", "by columns"),
    ),
    "group": (
        ("group 12/7", "step 12, sample 7"),
        ("group 12/7 --html group.html", "the same as a page"),
    ),
    "steps": (
        ("steps --run latest", "of the run that began last"),
        ("steps --validation --format json", "for a program"),
    ),
    "query": (
        ("query 'SELECT tool_name, count(*) FROM tool_calls GROUP BY 1'", ""),
        ("query 'SELECT * FROM turns' --format parquet -o turns.parquet", ""),
    ),
    "export": (
        ("export --format atif --to trials", "as Harbor's trials"),
        ("export --reward 1 --format messages", "what was solved"),
    ),
    "view": (
        ("view", "the newest run"),
        ("view --from s3://bucket/rollouts --open", "of a table"),
    ),
    "report": (
        ("report", "the newest run, a row per step"),
        ("report --compare 30-40..50-60", "what changed between ranges"),
        ("report --compare first-try", "what changed since another run"),
    ),
    "timeline": (
        ("timeline", "the slowest step"),
        ("timeline --step 12 --html step.html", "a page with lanes"),
        ("timeline --step 12 --perfetto step.json.gz", "for Perfetto"),
    ),
    "health": (
        ("health", "the newest run"),
        ("health --json", "for a program; status 1: unhealthy"),
    ),
    "import": (
        ("import /tmp/otel-rollout-1000 --to delta", "a spool"),
        ("import mlflow --to delta", "traces in MLflow"),
    ),
    "table compact": (
        ("table compact", ""),
        ("table compact s3://bucket/rollouts --retention 48h", ""),
    ),
    "table prune": (
        ("table prune --older-than 30d", "show what would go"),
        ("table prune --max-size 100GB --yes", "remove the oldest steps"),
    ),
    "table verify": (("table verify", ""),),
    "table": (("table prune --older-than 30d", "show what would go"),),
    "status": (
        ("status", "the latest run of this machine"),
        ("status --check --max-pending 5", "a probe: 5 GB may wait"),
        ("status --all --json", "every run, for a program"),
    ),
    "forward": (
        ("forward", "what is pending"),
        ("forward --to mlflow --spool ./copied-spool", "a copied spool"),
        ("forward --watch", "as a service"),
    ),
    "replay": (
        ("replay ./archive --to weave", "to another target"),
        ("replay rejected.mlflow.jsonl --to mlflow", "once more"),
    ),
    "doctor": (
        ("doctor", "this machine"),
        ("doctor --ray", "and every node of its Ray cluster"),
    ),
}
"""Command → its examples: arguments, and what they do."""


def epilog(command: str = _OF_ALL) -> str:
    """Return the end of a command's help: its examples, each a paragraph.

    Older versions of typer join the lines of a paragraph into one.
    """
    lines = [(f"otel-rollout {arguments}", purpose) for arguments, purpose in EXAMPLES[command]]
    width = max(len(line) for line, _ in lines)
    printed = (f"  {line.ljust(width)}  {purpose}".rstrip() for line, purpose in lines)
    return "\n\n".join(["\nExamples:", *printed])


class CommandGroup(TyperGroup):
    """The subcommands.

    A subcommand in ``_PLACES`` is imported only when it is needed, so that the other commands start fast.
    """

    def __init__(self, *, commands: Any = None, **settings: Any) -> None:
        by_name: dict[str, Any] = {**dict.fromkeys(_PLACES), **commands}
        super().__init__(commands=by_name, **settings)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a subcommand."""
        if cmd_name in _PLACES and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _imported(cmd_name)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand that the arguments name."""
        with _errors_reported():
            return super().invoke(ctx)


@contextmanager
def _errors_reported() -> Iterator[None]:
    """End the command with one line and status 2 after a reported error, or if deltalake is missing."""
    try:
        yield
    except ReportedError as error:
        say(str(error))
        raise typer.Exit(2) from error
    except ModuleNotFoundError as error:
        if error.name not in ("deltalake", "arro3"):
            raise
        say("This command needs deltalake: pip install 'otel-rollout[delta]'")
        raise typer.Exit(2) from error


class _Command(TyperCommand):
    """A subcommand that suggests the option that was meant: ``--from``, ``--step``, or that for JSON.

    The message is printed as one line, so that a path in it is not broken.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        known = {option for each in self.params for option in each.opts}
        for given, meant in (("--format", "--json"), ("--json", "--format")):
            if meant in known and given in {each.split("=")[0] for each in args} - known:
                raise ReportedError(f"There is no option {given}. Did you mean {meant}?")
        if ctx.allow_extra_args or "--from" not in known:
            return super().parse_args(ctx, args)
        ctx.allow_extra_args = True
        if (rest := super().parse_args(ctx, args)) and not ctx.resilient_parsing:
            is_step = rest[0].isdigit() and "--step" in known
            meant = f"a step is --step {rest[0]}" if is_step else "--from names what is read"
            raise ReportedError(f"{rest[0]} belongs to no option: {meant}.")
        return rest


def _imported(name: str) -> Any:
    found = EntryPoint(name, _PLACES[name], "").load()
    parent, heading = typer.Typer(), _HEADINGS.get(name, _LOOK)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name, rich_help_panel=heading)
    else:
        dashes = dict.fromkeys(("ignore_unknown_options", "allow_extra_args"), name in _OF_NAMES)
        settings: Any = {"cls": _Command, "context_settings": dashes, "rich_help_panel": heading}
        parent.command(name, epilog=epilog(name), **settings)(found)
    return get_group(parent).commands[name]
