"""Test that the forwarder gets every setting that it reads."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from otel_rollout import settings_reader
from otel_rollout.record.launch import launcher
from otel_rollout.record.runs.ray_job import NODE_VARIABLES
from otel_rollout.settings import CONFIG_VARIABLE, Settings, given_to_forwarder

PACKAGE = Path(settings_reader.__file__).parent
FORWARDER = [path for room in ("deliver", "turns", "exporting") for path in (PACKAGE / room).rglob("*.py")]
"""Modules that run in the forwarder and read settings."""
PROPERTIES = {
    "enabled": {"exporters"},
    "samples_groups": {"sample_rate", "sample_every", "sample_groups", "sample_validation"},
    "tail_rules": {"outcome_keep"},
    "experiment": {"experiment_name", "run_id"},
    "missing_exporters": {"exporters", "step_metrics"},
}
"""Property of Settings → the settings from which it is computed."""
FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
MARKED = {*given_to_forwarder("founder"), *given_to_forwarder("starter")}
VALUES = {
    "exporters": {"mlflow": {"tracking_uri": "sqlite:///a.db"}, "console": {}},
    "turns": "all",
    "redact": "secrets",
    "outcome_keep": "errors,spread=0.5",
    "step_metrics": "mlflow",
    "delta_keep": "30d",
    "receive_traces": "trajectories",
    "sample_rate": 0.5,
    "sample_validation": "never",
}
"""Valid values of settings that do not accept every text."""


def value_for(name: str) -> object:
    """Return a value of a setting that is not its default."""
    default = getattr(Settings(), name)
    if name in VALUES:
        return VALUES[name]
    return (
        not default
        if isinstance(default, bool)
        else default + 7
        if isinstance(default, (int, float))
        else "other"
    )


def test_settings_that_the_forwarder_reads_are_marked() -> None:
    """A setting that is read but not passed would have its default in the forwarder."""
    read = {
        node.attr
        for path in FORWARDER
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) in ("configured", "settings", "self._settings", "self._configured")
    }
    needed = (read & FIELDS.keys()).union(*(PROPERTIES[name] for name in read & PROPERTIES.keys()))
    assert {"turns", "keep", "outcome_keep"} <= needed, "the scan finds settings that are read"
    assert needed <= MARKED


def test_every_property_of_settings_is_known_here() -> None:
    """The test above knows the settings of each property."""
    assert {
        name for name, value in vars(Settings).items() if isinstance(value, property)
    } == PROPERTIES.keys()


@pytest.mark.parametrize("name", sorted(MARKED))
def test_marked_setting_reaches_the_forwarder(name: str) -> None:
    """An argument of configure() reaches the forwarder, although no variable has it."""
    configured = dataclasses.replace(Settings(exporters={"console": {}}), **{name: value_for(name)})
    passed = launcher._forwarder_environment({}, configured)
    assert getattr(settings_reader.from_environment(passed)[0], name) == value_for(name)


@pytest.mark.parametrize("name", sorted(given_to_forwarder("founder")))
def test_founder_decides_how_a_run_is_delivered(name: str) -> None:
    """A process with another value starts a forwarder with the founder's value."""
    founder = settings_reader.to_variable(
        {"run_id": "run", settings_reader.FOUNDER_KEY: {name: value_for(name)}}
    )
    configured = Settings(exporters={"console": {}}, run_id="run")
    passed = launcher._forwarder_environment({CONFIG_VARIABLE: founder}, configured)
    assert getattr(settings_reader.from_environment(passed)[0], name) == value_for(name)


def test_settings_that_nobody_gives_reach_the_forwarder_without_a_problem() -> None:
    """Each default is a value that the forwarder can read."""
    passed = launcher._forwarder_environment({}, Settings(exporters={"delta": {}}, run_id="run"))
    assert settings_reader.from_environment(passed)[1] == []


def test_forwarder_gets_the_variables_of_exporters_of_other_packages() -> None:
    """Variables that begin with such an exporter's name pass, and those that the setting names; no others."""
    environ = {
        "LOG_BOOK_URL": "http://x",
        "LOG_BOOK_TOKEN": "t",
        "SHELF_URL": "http://y",
        "WIKI_URL": "http://z",
    }
    configured = Settings(exporters={"log-book": {}, "delta": {}}, forwarder_variables="SHELF_*")
    passed = launcher._forwarder_environment({**environ, "DELTA_X": "1"}, configured)
    assert passed.keys() & {*environ, "DELTA_X"} == {"LOG_BOOK_URL", "LOG_BOOK_TOKEN", "SHELF_URL"}


@pytest.mark.parametrize("is_of_node", [True, False])
def test_endpoint_that_a_node_sets_for_itself_is_that_of_its_forwarder(is_of_node: bool) -> None:
    """A node's own Collector takes its spans; the endpoint of one process is no other run's."""
    name = "OTEL_EXPORTER_OTLP_ENDPOINT"
    configured = Settings(exporters={"otlp": {}}, target_variables={name: "http://driver:4318"})
    environ = {name: "http://node:4318", NODE_VARIABLES: name if is_of_node else ""}
    passed = launcher._forwarder_environment(environ, configured)
    assert passed[name] == ("http://node:4318" if is_of_node else "http://driver:4318")
