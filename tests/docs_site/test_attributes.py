"""docs/attributes.md: its tables are those of the code, and stable names stay."""

from __future__ import annotations

import ast
import re

import pytest

from otel_rollout.base import semconv
from website import attributes

NAMES = attributes.NAMES.read_text(encoding="utf-8")
DESCRIBED = [attribute for group in attributes.groups(NAMES) for attribute in group.attributes]
STABLE = [
    "rollout.project_name",
    "rollout.experiment_name",
    "rollout.step",
    "rollout.sample_index",
    "rollout.rollout_n",
    "rollout.validate",
    "rollout.<name>",
    "rollout.extra.<name>",
    "rollout.score.<name>",
    "rollout.score_time.<name>",
    "rollout.score_origin",
    "rollout.tokens.<name>",
    "rollout.agent_name",
    "rollout.group_id",
    "rollout.group_size",
    "rollout.policy_version_min",
    "rollout.policy_version_max",
    "rollout.num_turns",
    "rollout.num_preempted",
    "rollout.batch_id",
    "rollout.batch_size",
    "rollout.begins_trajectory",
    "rollout.in_evaluator",
    "rollout.completion_length",
    "rollout.generator.items",
    "rollout.generator.exhausted",
    "rollout.generator.returned",
    "rollout.segment.id",
    "rollout.run.id",
]
"""Names that may change only as the page says under "When names change"."""
NO_ATTRIBUTES = {
    *(semconv.ORIGIN_PROCESS, semconv.ORIGIN_OUTSIDE, semconv.ORIGIN_IDENTITY, semconv.SCOPE),
    *(semconv.INTERRUPTION, semconv.ENGINE_REQUEST, semconv.JSON_MIME_TYPE, semconv.TEXT_MIME_TYPE),
    *semconv.SPAN_KINDS,
}


def names_of(attribute: attributes.Attribute) -> list[str]:
    """Return the names in the first cell of a row."""
    return re.findall(r"``([^`]+)``", attribute.names)


def test_page_is_what_the_code_says() -> None:
    """If this fails, run `python -m website.attributes`."""
    page = attributes.PAGE.read_text(encoding="utf-8")
    assert page == attributes.page(page)
    assert re.findall(r"<!-- generated:(\w+) -->", page) == ["attributes", "end", "metrics", "end"]


def test_every_name_is_described() -> None:
    """Each constant of semconv.py that names an attribute has a row with type, meaning and example."""
    rows = [name for attribute in DESCRIBED for name in names_of(attribute)]
    assert len(rows) == len(set(rows))
    described = {name.replace("<name>", "") for name in rows}
    known = {value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}
    assert known - NO_ATTRIBUTES - {semconv.RECORDED_SUFFIX} - described == set()
    levels = {"stable", "development", "internal", "without a level"}
    assert {attribute.level for attribute in DESCRIBED} == levels
    without = {name for attribute in DESCRIBED if not attribute.example for name in names_of(attribute)}
    assert without == {
        *("rollout.score_batch", "rollout.score_batch.names"),
        *("rollout.score_batch.texts", "rollout.score_batch.data"),
    }


def test_stable_names_stay() -> None:
    """A stable name that goes breaks queries, dashboards and older data of users."""
    stable = [
        name
        for attribute in DESCRIBED
        if attribute.level == "stable"
        for name in names_of(attribute)
        if name.startswith("rollout.")
    ]
    assert stable == STABLE


@pytest.mark.parametrize("folder", ["otel_rollout", "exporters"])
def test_other_modules_take_names_of_attributes_from_semconv(folder: str) -> None:
    """A name that is written elsewhere is missing on the page."""
    declared = {name for attribute in DESCRIBED for name in names_of(attribute)}
    found = {
        node.value: path.name
        for path in (attributes.ROOT / folder).rglob("*.py")
        if path != attributes.NAMES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in declared
    }
    assert {name: file for name, file in found.items() if name.startswith("rollout.")} == {}


def test_every_metric_has_a_row() -> None:
    """Name, instrument, unit and meaning are those of the meter's calls."""
    rows = attributes.metrics(attributes.METRICS.read_text(encoding="utf-8"))
    source = attributes.METRICS.read_text(encoding="utf-8")
    assert {name for name, *_ in rows} == set(re.findall(r'"((?:gen_ai\.client|rollout)\.[\w.]+)"', source))
    assert ("rollout.tool.duration", "histogram", "s", "Duration of tool calls") in rows
