"""Implement ``otel-rollout status --check``: a probe's answer, as exit status and lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from otel_rollout.base.printable import in_one_line
from otel_rollout.base.setting_parsers import listed
from otel_rollout.base.suggest import unknown
from otel_rollout.settings import Settings

if TYPE_CHECKING:
    from otel_rollout.doctor.diagnosis import DoctorFinding

_MAX_LINES: Final = 20
"""Findings that are printed; an event of Kubernetes keeps 1 kB."""
_GIGABYTE: Final = 1e9
_UNHEALTHY: Final = 1
"""Exit status if a check has found something."""

CheckOption = Annotated[
    bool,
    typer.Option("--check", help="Print what is wrong, a line each; the exit status is 1 then, else 0."),
]
OnlyOption = Annotated[
    str | None,
    typer.Option(
        "--only",
        help="With --check: checks to run beside that of the spool itself, with commas: damaged, forwarder, "
        "backlog, refused, dropped, rejected, disk. \\[default: all]",
        metavar="NAME,…",
    ),
]
MaxAgeOption = Annotated[
    float, typer.Option(help="With --check: seconds that a span may be pending.", min=0, metavar="SECONDS")
]
MaxPendingOption = Annotated[
    float,
    typer.Option(help="With --check: gigabytes that may be pending for an exporter.", min=0, metavar="GB"),
]
MinFreeOption = Annotated[
    float,
    typer.Option(
        help="With --check: per cent of the spool's disk that must be free.",
        min=0,
        max=100,
        metavar="PERCENT",
    ),
]


def check(
    spool: Path | None,
    configured: Settings,
    only: str | None,
    max_age: float,
    max_pending: float,
    min_free: float,
) -> None:
    """Print a line for each finding, or one line if nothing is wrong.

    Raises:
        typer.Exit: there is a finding.
    """
    from otel_rollout.doctor import delivery
    from otel_rollout.doctor.diagnosis import DoctorCheck
    from otel_rollout.spool import layout

    chosen = _chosen(only, delivery.CHECKS)
    limits = delivery.AlarmLimits(max_age, max_pending * _GIGABYTE, min_free, configured.spool_limit)
    directory = spool or configured.spool_dir
    found, runs = delivery.check_delivery(directory, limits)
    if spool is not None and not os.path.lexists(spool):  # a typing error would be healthy for ever
        found = [DoctorCheck("spool").fail(f"{spool} does not exist: check --spool")]
    elif spool is not None and not runs and not found and (others := layout.owners(spool) - {os.geteuid()}):
        found.append(DoctorCheck("spool").fail(_of_others(spool, others)))
    found = [each for each in found if each.check in chosen]
    for each in found[:_MAX_LINES]:
        typer.echo(_line(each))
    if len(found) > _MAX_LINES:
        typer.echo(f"{len(found) - _MAX_LINES} more findings")
    if found:
        raise typer.Exit(_UNHEALTHY)
    typer.echo(f"healthy: {runs} {'run' if runs == 1 else 'runs'} in {in_one_line(str(directory))}")


def _of_others(spool: Path, owners: set[int]) -> str:
    """Return a message that the spool belongs to other users: a probe could never find a problem in it."""
    users = ", ".join(map(str, sorted(owners)))
    me = os.geteuid()
    return f"every run in {spool} belongs to another user (id {users}), not to {me}: check it as its owner"


def _chosen(only: str | None, checks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the checks that ``--only`` names, and always the check of the spool itself."""
    if only is None:
        return checks
    names = listed(only)
    for name in names or [only]:
        if name not in checks:
            raise typer.BadParameter(f"--only: {unknown('check', name, checks)}")
    return ("spool", *names)


def _line(found: DoctorFinding) -> str:
    said = f"{found.found.rstrip('.')}. {found.advice}" if found.advice else found.found
    return in_one_line(f"{found.check}: {said}")
