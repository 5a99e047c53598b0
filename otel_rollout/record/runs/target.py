"""Compare the target that a process names with the target of the run it inherits.

The founder of a run publishes the target to the processes that it starts: exporters with options, project,
and the variables that name a target (in :data:`otel_rollout.settings.CONFIG_VARIABLE`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from otel_rollout import settings_reader
from otel_rollout.base.environment import (
    KNOWN_EXPORTERS,
    begins_with_exporter,
    may_be_credential,
    without_credentials,
)
from otel_rollout.base.setting_parsers import listed
from otel_rollout.settings import Settings

_OF_OTHERS: Final = re.compile(r"OTEL_(?!ROLLOUT_|.*(LOGS|METRICS)_).*(ENDPOINT|FILE|HOST|PATH|URI|URL)")
"""Pattern of variables that name the target of an exporter outside :data:`KNOWN_EXPORTERS`."""
_SET_BY_CLIENTS: Final = frozenset[str]().union(*(known.set_by_client for known in KNOWN_EXPORTERS.values()))
"""Variables that name a target, but do not distinguish runs, because a tracker's client sets them itself."""
_SETTINGS: Final = {
    "OTEL_TRACES_EXPORTER": "exporters",
    "OTEL_ROLLOUT_PROJECT": "project_name",
    "OTEL_ROLLOUT_RUN_ID": "run_id",
    "OTEL_ROLLOUT_SPOOL_DIR": "spool_dir",
}
"""Variable → setting, for settings that distinguish runs."""


def variables(environ: Mapping[str, str], configured: Settings) -> dict[str, str]:
    """Return variables that name the target of settings, without credentials."""
    return {
        name: without_credentials(value.strip())
        for name, value in environ.items()
        if value.strip() and (name in _SETTINGS or names_target(name, configured))
    }


def published_variables(environ: Mapping[str, str], configured: Settings) -> dict[str, str]:
    """Return variables that a founder publishes: its own, and further inherited ones."""
    inherited = {
        name: value
        for name, value in configured.target_variables.items()
        if name in _SETTINGS or names_target(name, configured)
    }
    return inherited | variables(environ, configured)


def names_target(name: str, configured: Settings) -> bool:
    """Return whether a variable names the target of one of the exporters."""
    return any(_names_target_of(exporter, name) for exporter in configured.exporters) or (
        not may_be_credential(name, "") and is_further_variable(name, configured)
    )


def is_further_variable(name: str, configured: Settings) -> bool:
    """Return whether a variable belongs to an exporter of another package, by its name or by the settings."""
    return begins_with_exporter(name, configured.exporters) or any(
        fnmatch.fnmatchcase(name, pattern) for pattern in listed(configured.forwarder_variables)
    )


def _names_target_of(exporter: str, name: str) -> bool:
    known = KNOWN_EXPORTERS.get(exporter)
    if known is None:
        return _OF_OTHERS.fullmatch(name) is not None
    return name in known.of_target or name in known.set_by_client


def named_by_variables(environ: Mapping[str, str], inherited: Settings) -> dict[str, Any]:
    """Return variables changed since the run began, as arguments of ``configure()``.

    Args:
        environ: this process's environment.
        inherited: inherited settings, with the variables of the run's founder.
    """
    changed = {
        name: value
        for name, value in variables(environ, inherited).items()
        if name not in _SET_BY_CLIENTS and not _is_of_run(name, value, inherited)
    }
    if not changed:
        return {}
    stated, _ = settings_reader.from_environment(
        {name: v for name, v in changed.items() if name in _SETTINGS}
    )
    named = {_SETTINGS[name]: getattr(stated, _SETTINGS[name]) for name in changed if name in _SETTINGS}
    named["exporters"] = {
        exporter: {
            option: value
            for option, value in inherited.exporters.get(exporter, {}).items()
            if not _is_replaced(exporter, option, changed)
        }
        for exporter in named.get("exporters", inherited.exporters)
    }
    named["target_variables"] = {**inherited.target_variables, **changed}
    return named


def _is_replaced(exporter: str, option: str, changed: Mapping[str, str]) -> bool:
    """Return whether changed variables replace an option.

    A variable replaces the option of its name, and also the options that are credentials: they belong to the
    earlier target.
    """
    of_exporter = [name for name in changed if _names_target_of(exporter, name)]
    return any(_is_option(name, option) for name in of_exporter) or (
        bool(of_exporter) and may_be_credential(option, "")
    )


def completed(environ: Mapping[str, str], inherited: Settings, named: Mapping[str, Any]) -> Settings:
    """Return inherited settings changed by arguments.

    An exporter given without options keeps its inherited options. An exporter without a target takes the
    target that this process's variables name.
    """
    exporters = {
        exporter: options or inherited.exporters.get(exporter, {})
        for exporter, options in named.get("exporters", inherited.exporters).items()
    }
    found = {
        name: value
        for name, value in variables(environ, inherited).items()
        if any(_has_no_target(e, inherited) and _names_target_of(e, name) for e in inherited.exporters)
    }
    changes = {**named, "exporters": exporters, "target_variables": {**found, **inherited.target_variables}}
    return dataclasses.replace(inherited, **changes)


def _is_of_run(name: str, value: str, run: Settings) -> bool:
    """Return whether a variable agrees with ``run``, or is the first to name the run's target."""
    if _same(value, run.target_variables.get(name)):
        return True
    if name == "OTEL_TRACES_EXPORTER":
        return set(listed(value)) == set(run.exporters)
    if name in _SETTINGS:
        return name != "OTEL_ROLLOUT_SPOOL_DIR" and value == getattr(run, _SETTINGS[name])
    owners = [exporter for exporter in run.exporters if _names_target_of(exporter, name)]
    options = (item for exporter in owners for item in run.exporters[exporter].items())
    if any(_is_option(name, option) and _same(value, given) for option, given in options):
        return True
    return bool(owners) and all(_has_no_target(exporter, run) for exporter in owners)


def _has_no_target(exporter: str, run: Settings) -> bool:
    """Return whether an exporter has no target yet; a program may name it later."""
    known = KNOWN_EXPORTERS.get(exporter)
    if known is None or known.required is None:
        return False
    option, variable = known.required
    return option not in run.exporters[exporter] and variable not in run.target_variables


def _is_option(variable: str, option: str) -> bool:
    """Return whether a variable's name ends with an option's name."""
    return variable.endswith("_" + option.upper())


def _same(first: object, second: object) -> bool:
    """Return whether both values are given and name one target."""
    if first is None or second is None:
        return False
    return without_credentials(str(first)).rstrip("/") == without_credentials(str(second)).rstrip("/")


def is_another(run: Settings, named: Mapping[str, Any]) -> bool:
    """Return whether arguments name another run, target, project or exporter."""
    names = ("project_name", "run_id", "spool_dir", "target_variables")
    if any(name in named and named[name] != getattr(run, name) for name in names):
        return True
    exporters = named.get("exporters", run.exporters)
    return exporters.keys() != run.exporters.keys() or any(
        not _has_option(run, exporter, option, value)
        for exporter, options in exporters.items()
        for option, value in options.items()
    )


def _has_option(run: Settings, exporter: str, option: str, value: object) -> bool:
    if option in run.exporters[exporter]:
        return bool(run.exporters[exporter][option] == value)
    return any(
        _same(value, given)
        for name, given in run.target_variables.items()
        if _names_target_of(exporter, name) and _is_option(name, option)
    )


def fingerprint(configured: Settings) -> str:
    """Return a digest of exporters and target, equal in all processes of a run.

    Credentials do not enter the digest.
    """
    as_inherited = json.loads(settings_reader.to_variable(configured.exporters))
    target = {
        "exporters": {
            exporter: {
                option: without_credentials(str(value))
                for option, value in options.items()
                if not may_be_credential(option, "")
            }
            for exporter, options in as_inherited.items()
        },
        "variables": {
            name: value
            for name, value in configured.target_variables.items()
            if name not in _SET_BY_CLIENTS and name not in _SETTINGS
        },
    }
    return hashlib.sha256(json.dumps(target, sort_keys=True).encode()).hexdigest()[:16]


def own_run_id(inherited_id: str, configured: Settings) -> str:
    """Return the id of a run beside the inherited one, derived from the target."""
    digest = hashlib.sha256(f"{fingerprint(configured)} {configured.project_name}".encode()).hexdigest()
    return f"{inherited_id}-{digest[:8]}"
