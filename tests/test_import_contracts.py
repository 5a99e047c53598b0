"""The import contracts in pyproject.toml name every exporter."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
CONTRACTS = {contract["name"]: contract for contract in PROJECT["importlinter"]["contracts"]}


def test_import_contracts_and_packaging_name_every_exporter():
    """An exporter that is not listed could import anything."""
    exporters = {path.parent.name for path in (ROOT / "exporters").glob("*/__init__.py")}
    packages = {"otel_rollout", *exporters}
    assert set(PROJECT["importlinter"]["root_packages"]) == packages
    made_of = CONTRACTS["Exporters import only what exporters are made of"]
    assert set(made_of["source_modules"]) == exporters
    assert set(CONTRACTS["Exporters know nothing of each other"]["modules"]) == exporters
    one_direction = CONTRACTS["Modules of a room import each other in one direction"]
    assert set(one_direction["ancestors"]) == packages
    assert packages <= set(PROJECT["mypy"]["packages"])
    wheel = PROJECT["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages <= {Path(package).name for package in wheel}
