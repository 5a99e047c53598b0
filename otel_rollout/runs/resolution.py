"""Resolve environment and arguments to settings; decide whether to found a run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from otel_rollout import settings_reader
from otel_rollout._state import process
from otel_rollout.base.receiver_variables import without_receiver
from otel_rollout.runs import ray_job, target
from otel_rollout.settings import CONFIG_VARIABLE, Settings


class Resolution(NamedTuple):
    """The result of resolving environment and arguments.

    Attributes:
        settings: the settings of this process.
        founds_run: whether this process founds a run: because it inherits none, or beside the inherited run.
    """

    settings: Settings
    founds_run: bool


def resolve(arguments: dict[str, Any], joins: bool) -> Resolution:
    """Resolve the environment of this process and arguments of ``configure()``.

    Args:
        arguments: checked arguments.
        joins: whether to stay in the inherited run, whatever target the arguments name.
    """
    inherited, _ = settings_reader.from_environment(os.environ)
    by_variables = target.named_by_variables(_variables_for_this_process(), inherited)
    stated = dataclasses.replace(inherited, **by_variables)
    configured = target.completed(without_receiver(os.environ), stated, arguments)
    configured = dataclasses.replace(configured, **settings_reader.switched_off(os.environ))
    if CONFIG_VARIABLE not in os.environ or not inherited.run_id or process.is_root:
        return Resolution(configured, True)
    if joins or not (target.is_another(inherited, by_variables) or target.is_another(inherited, arguments)):
        return Resolution(dataclasses.replace(configured, exporters=inherited.exporters), False)
    if configured.run_id == inherited.run_id:
        configured = dataclasses.replace(configured, run_id=target.own_run_id(inherited.run_id, configured))
    # The founder of a run uses its own directory and machine, unless its arguments name others.
    own = {name: arguments.get(name, "") for name in ("working_dir", "home_node")}
    return Resolution(dataclasses.replace(configured, **own), True)


def _variables_for_this_process() -> Mapping[str, str]:
    """Return the variables set for this process, rather than for its machine."""
    if not target.is_published(os.environ):  # there is nothing to compare variables with
        return {}
    environ = without_receiver(os.environ)
    given = ray_job.variables_given_to_worker(os.environ)
    if given is None:
        return environ
    return {name: value for name, value in environ.items() if name in given}
