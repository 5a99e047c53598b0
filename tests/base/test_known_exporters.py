"""Prefixes of environment variables, and the variables of exporters."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from otel_rollout.base.environment import DELIVERY_PREFIXES, KNOWN_EXPORTERS, PREFIXES
from otel_rollout.exporting.entry_points import installed

ROOT = Path(__file__).parents[2]


def test_prefixes_are_listed_in_one_module() -> None:
    """No other module of package or exporters has a prefix as a string of its own."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("otel_rollout", "exporters")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in DELIVERY_PREFIXES
    }
    assert found == {"otel_rollout/base/environment.py"}


def test_exporters_get_at_least_the_variables_of_every_process() -> None:
    """A forwarder has the variables that Ray's workers have."""
    assert set(PREFIXES) < set(DELIVERY_PREFIXES)


@pytest.mark.parametrize("exporter", KNOWN_EXPORTERS)
def test_variables_of_a_known_exporter_reach_every_process(exporter: str) -> None:
    """They begin with the exporter's prefixes.

    The variable of a required option names the target.
    """
    known = KNOWN_EXPORTERS[exporter]
    assert all(name.startswith(known.prefixes) for name in known.of_target | known.set_by_client)
    assert not known.of_target & known.set_by_client
    assert known.required is None or known.required[1] in known.of_target


def test_known_exporters_are_installed() -> None:
    """Each name in the table is the name of an entry point."""
    assert set(KNOWN_EXPORTERS) <= set(installed())
