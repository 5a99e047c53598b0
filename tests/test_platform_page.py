"""docs/operations.md: its limits are those of the code, its figures those of the pages that they are from."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from otel_rollout.base.waits import Waits
from otel_rollout.record import metrics
from otel_rollout.settings import Settings

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "operations.md").read_text().partition("\n## Versions and support\n")[0]
UNITS = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20}
HALF_OF_THE_DISK = "half of the free space"
METRIC = "otel_rollout."


def rows(section: str) -> list[list[str]]:
    """Return the cells of the first table of a section, without its head."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def number(text: str) -> float:
    """Return a quantity such as ``4 MiB`` as a number."""
    found = re.fullmatch(r"([\d,.]+)(?: (\w+))?", text)
    assert found, text
    return float(found[1].replace(",", "")) * UNITS[found[2] or ""]


def in_code(name: str) -> float:
    """Return a setting's default by its variable, or a constant by its module and name."""
    setting = next((each for each in fields(Settings) if each.metadata.get("variable") == name), None)
    if setting is not None:
        default: float = setting.default
        return default
    module, _, constant = name.rpartition(".")
    owner = Waits() if module == "base.waits.Waits" else import_module(f"otel_rollout.{module}")
    value: float = getattr(owner, constant)
    return value


@pytest.mark.parametrize("row", rows("Limits"), ids=lambda row: row[0])
def test_limit_is_the_codes(row: list[str]) -> None:
    """The table names each bound as the code has it."""
    _, bound, name, consequence = row
    value = in_code(name.strip("`"))
    assert value == (0 if bound == HALF_OF_THE_DISK else number(bound))
    assert consequence


@pytest.mark.parametrize("row", rows("Sizing"), ids=lambda row: row[0])
def test_figure_is_that_of_its_source(row: list[str]) -> None:
    """A figure stands in the page that the row names, as a number of its own."""
    _, figures, source = row
    found = re.fullmatch(r"\[.*\]\(([\w-]+\.md)(#[\w-]+)?\)", source)
    assert found, source
    text = (DOCS / found[1]).read_text()
    for figure in re.findall(r"\d[\d,.]*\d|\d", figures):
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", text), figure


def test_alerts_name_metrics_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every metric of the page is offered, and every offered one is on the page."""
    offered: list[str] = []

    class Meter:
        def create_observable_counter(self, name: str, *described: object) -> None:
            offered.append(name)

    monkeypatch.setattr(metrics.metrics, "get_meter", lambda *_: Meter())
    metrics.offer(lambda: None, dict)
    assert set(re.findall(rf"`({re.escape(METRIC)}\w+)`", PAGE)) == set(offered)


def test_what_is_installed_is_what_the_package_asks_for() -> None:
    """The page names every dependency of the base install, and its licence."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    answers = dict(rows("Before you allow it"))
    named = re.findall(r"`([a-z0-9.-]+)`", answers["what is installed"])
    assert named == sorted(re.match(r"[\w.-]+", one)[0] for one in project["dependencies"])
    assert project["license"] == "Apache-2.0"
    assert answers["licence"] == "Apache License 2.0"


def test_alerts_of_the_page_are_those_of_the_rules() -> None:
    """Each of the Collector's metrics that the page names is in a rule of alerts.yaml."""
    rules = (DOCS.parent / "collector-config" / "alerts.yaml").read_text()
    named = set(re.findall(r"`(otelcol_\w+)`", PAGE))
    assert named
    assert [name for name in named if name not in rules] == []
