"""Read a process's settings from arguments, its run's founder and variables.

Arguments take precedence over settings inherited from the founder. Inherited settings take precedence over
variables, and variables over defaults.

The process that founds a run passes its arguments and its target to child processes in one variable,
:data:`otel_rollout.settings.CONFIG_VARIABLE`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from otel_rollout.base import redaction_names, setting_parsers
from otel_rollout.base.environment import KNOWN_EXPORTERS, NAMES_VARIABLE, without_receiver
from otel_rollout.base.errors import Unusable, pass_on
from otel_rollout.base.given import MAX_NAMES, items, listed
from otel_rollout.base.printable import in_one_line
from otel_rollout.base.suggest import closest, did_you_mean
from otel_rollout.base.version import VERSION
from otel_rollout.settings import (
    CONFIG_VARIABLE,
    PREFIX,
    WARNED_VARIABLE,
    ExporterOptions,
    Settings,
    SettingsError,
    variable_of,
)

FOUNDER_KEY: Final = "delivery"
"""Entry of :data:`CONFIG_VARIABLE` with the founder's settings for the forwarder, and its version.

The version is not a setting of its own, because processes of the first versions refuse unknown settings.
"""
VERSION_KEY: Final = "version"
_SHOWN_CHARACTERS: Final = 200
"""Maximum characters of an unusable value that a message shows."""
_MIN_SIMILARITY: Final = 0.9
"""Minimum similarity, from 0 to 1, at which a variable without the prefix counts as misspelt."""
_SIMPLE: Final = (str, int, float)
_TEXT_OR_NUMBER: Final = ("sampler_arg", "sample_seed")
"""Text settings whose argument may be a number."""
_MAY_BE_SECRET: Final = ("exporters", "receive_token", "resource_attributes")
"""Settings whose values no message shows."""
_EXPECTED: Final = {"int": "a whole number", "float": "a number", "Path": "text or a Path"}
"""Type of a field → expected argument of ``configure()``, for error messages; else text."""


def switched_off(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings by which variables switch tracing off; they win over all arguments."""
    environ = without_receiver(environ)
    if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return {"exporters": {}}
    is_disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return {"sdk_disabled": True} if is_disabled else {}


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Return whether variables switch tracing on."""
    named = without_receiver(environ).get("OTEL_TRACES_EXPORTER", "")
    return bool(setting_parsers.names(named)) and not switched_off(environ)


def from_environment(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Read the settings of a process that has not called ``configure()``.

    A wrong value does not stop training: the default is used, or a value that records less.

    Returns:
        The settings, and one sentence for each value that could not be used.
    """
    environ = without_receiver(environ)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for field in dataclasses.fields(Settings):
        value = environ.get(variable_of(field))
        if value is None or not value.strip():  # an empty variable counts as unset (OTel specification)
            continue
        try:
            values[field.name] = field.metadata["parse"](value)
        except ValueError as error:
            shown = "" if field.name in _MAY_BE_SECRET else f"={value!r}"
            default = "" if field.default in ("", dataclasses.MISSING) else f": {field.default!r}"
            used = f"the default is used{default}"
            if (otherwise := field.metadata["otherwise"]) is not None:
                values[field.name], used = otherwise, f"{otherwise!r} is used"
            problems.append(f"{variable_of(field)}{shown} {error}; {used}.")
    try:
        published = _published(environ)
        founder = version_of_founder(environ) or "of another version"
        of_founder, unusable = _usable(published)
        values |= of_founder
        problems += [
            f"{CONFIG_VARIABLE}: {sentence} The run was started by otel-rollout {founder}, this is {VERSION}."
            for sentence in unusable
        ]
        if unknown := sorted(set(published) - set(_known(published))):
            problems.append(
                f"{CONFIG_VARIABLE}: a newer otel-rollout started the run. Version {VERSION} of this process "
                f"does not know its settings {', '.join(unknown)}; they have no effect here."
            )
    except ValueError as error:
        problems.append(f"{CONFIG_VARIABLE} {error}; it is ignored.")
    return Settings(**values | switched_off(environ)), problems


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that is unknown or probably misspelt.

    The variables are unknown ones with the prefix ``OTEL_ROLLOUT_``, and variables that differ from one in
    :class:`Settings` by a letter or two (``OTEL_TRACE_EXPORTER``).
    """
    of_exporters = (name for known in KNOWN_EXPORTERS.values() for name in known.of_target)
    known = [
        *(variable_of(field) for field in dataclasses.fields(Settings)),
        *(name for name in of_exporters if name.startswith(PREFIX)),
    ]
    without_prefix = {name.removeprefix(PREFIX): name for name in known}
    found = []
    for name in sorted(set(environ) - {*known, CONFIG_VARIABLE, WARNED_VARIABLE, NAMES_VARIABLE}):
        if name.startswith(PREFIX):
            short = name.removeprefix(PREFIX)
            by_beginning = {each[: len(short)]: each for each in reversed(without_prefix)}
            begun = by_beginning.get(closest(short, by_beginning) or "")
            meant = closest(short, without_prefix) or begun
            suggestion = f" Did you mean {without_prefix[meant]!r}?" if meant else ""
            found.append(f"{name} is not a variable of otel-rollout and has no effect.{suggestion}")
        elif name.startswith("OTEL") and (meant := closest(name, known, _MIN_SIMILARITY)):
            found.append(f"{name} has no effect on otel-rollout. Did you mean {meant!r}?")
    return found


def inherited(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that this process inherits from the founder of its run.

    Settings of a newer version are left out, and so are values that only a newer version knows.

    Raises:
        ValueError: ``CONFIG_VARIABLE`` cannot be read.
    """
    return _usable(_published(environ))[0]


def is_inherited(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether this process inherits a setting; False if ``CONFIG_VARIABLE`` cannot be read."""
    try:
        return name in inherited(environ)
    except ValueError:  # logged when the settings are read
        return False


def _published(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that the run's founder has published, unchecked, without the forwarder's.

    Raises:
        ValueError: ``CONFIG_VARIABLE`` cannot be read.
    """
    value = environ.get(CONFIG_VARIABLE)
    if not value:
        return {}
    try:
        published = json.loads(value)
        if not isinstance(published, dict):
            raise TypeError("it holds no object")
        published.pop(FOUNDER_KEY, None)
        return published
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot be read ({error})") from None


def _known(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that this version knows; the processes of a run may have different versions."""
    known = {field.name for field in dataclasses.fields(Settings)}
    return {name: value for name, value in arguments.items() if name in known}


def _usable(published: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the published settings that this version understands, and a sentence for each other value.

    A value that this version does not understand affects its own setting only. It never makes this process
    record more than the founder meant.
    """
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    usable: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in _known(published).items():
        try:
            usable |= checked_arguments({name: value})
            if name == "redact" and (problem := redaction_names.problem(usable.get(name, ""))):
                raise ValueError(problem)
        except ValueError as error:
            usable.pop(name, None)
            used = "the variable or the default"
            if (otherwise := _otherwise(fields[name], value)) is not None:
                usable[name], used = otherwise, repr(otherwise)
            reason = str(error) if isinstance(error, SettingsError) else f"{name}={value!r} {error}"
            problems.append(f"{_shortened(reason.rstrip('.'))}; {used} is used.")
    return usable, problems


def _otherwise(field: dataclasses.Field[Any], value: Any) -> Any:
    """Return what replaces a published value that cannot be used; None for the default.

    Without exporters, a process would not record. So it records with the exporters that it understands; if
    there are none, the spans wait in the spool.
    """
    if field.name != "exporters":
        return field.metadata["otherwise"]
    entries = value.items() if isinstance(value, Mapping) else ()
    understood = {name: dict(options) for name, options in entries if isinstance(options, Mapping)}
    return understood or {"spool": {}}


def _shortened(text: str) -> str:
    """Return a text in one line, cut after :data:`_SHOWN_CHARACTERS`."""
    line = in_one_line(text)
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…"


def version_of_founder(environ: Mapping[str, str]) -> str | None:
    """Return the version of the run's founder; None if it is not published, as by the first versions."""
    try:
        return in_one_line(str(json.loads(environ.get(CONFIG_VARIABLE, ""))[FOUNDER_KEY][VERSION_KEY]))[:40]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def from_founder(run_id: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the forwarder settings that a run's founder published; empty if none."""
    try:
        published = json.loads(environ.get(CONFIG_VARIABLE, ""))
        return _usable(published[FOUNDER_KEY])[0] if published["run_id"] == run_id else {}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def to_variable(arguments: Mapping[str, Any]) -> str:
    """Encode checked arguments for :data:`CONFIG_VARIABLE`.

    The text is ASCII: paths may hold bytes that are no text, and some processes cannot put other characters
    into their environment.
    """
    return json.dumps(dict(arguments), default=str)


def as_inherited(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked arguments as child processes read them from the variable."""
    return checked_arguments(json.loads(to_variable(arguments)))


def checked_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check and convert arguments of ``configure()``; ignore arguments that are None.

    Raises:
        SettingsError: an argument does not exist, or a value cannot be used.
    """
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    checked: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in fields:
            raise SettingsError(
                f"configure() has no setting {name!r}.{did_you_mean(name, fields)} "
                f"Settings: {', '.join(sorted(fields))}."
            )
        if value is None:
            continue
        try:
            checked[name] = _checked(fields[name], value)
        except Exception as error:  # noqa: BLE001 - the value's own methods may raise anything
            pass_on(error)
            known = isinstance(error, (TypeError, ValueError, Unusable))
            reason = error if known else f"raised a {type(error).__name__}"
            raise SettingsError(f"configure({name}={_shown(name, value)}): the value {reason}.") from None
    return checked


def _shown(name: str, value: Any) -> str:
    """Return a setting's value as a message shows it."""
    try:
        return "…" if name in _MAY_BE_SECRET else repr(value)
    except Exception as error:  # noqa: BLE001 - of the value's own method
        pass_on(error)
        return f"<{type(value).__name__}>"


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    """Check an argument, and return the value of its field."""
    if field.name == "exporters":
        return _exporter_options(value)
    if field.metadata["parse"] is setting_parsers.pairs:
        if not isinstance(value, Mapping):
            raise TypeError("must be a mapping of names to values")
        entries = list(items(value))
        if not all(isinstance(key, str) and isinstance(entry, _SIMPLE) for key, entry in entries):
            raise TypeError("must map text to text, numbers or booleans")
        # An environment may hold any bytes.
        text = str if field.name == "target_variables" else setting_parsers.text
        return {text(key): text(str(entry)) for key, entry in entries}
    if field.metadata["parse"] is setting_parsers.flag:
        if isinstance(value, bool):
            return value
        raise TypeError("must be True or False")
    if isinstance(value, bool) or not isinstance(value, _accepted_types(field)):
        raise TypeError(f"must be {_EXPECTED.get(str(field.type), 'text')}, not {type(value).__name__}")
    return field.metadata["parse"](str(value))


def _accepted_types(field: dataclasses.Field[Any]) -> tuple[type, ...]:
    """Return the types that an argument may have; text is parsed like a variable's."""
    if field.metadata["parse"] in (setting_parsers.path, setting_parsers.path_text):
        return (str, Path)
    if field.type in ("int", "float") or field.name in _TEXT_OR_NUMBER:
        return _SIMPLE
    return (str,)


def _exporter_options(value: str | Iterable[str] | ExporterOptions) -> dict[str, dict[str, Any]]:
    """Return exporters with options, from a name, names, or a mapping to options."""
    if isinstance(value, str):
        return setting_parsers.names(value)
    if isinstance(value, Mapping):
        given = dict(items(value))
        for name, options in given.items():
            if not isinstance(name, str):
                raise TypeError(f"has {name!r} as the name of an exporter, which must be text")
            if not isinstance(options, Mapping):
                raise TypeError(f"has for {name!r} no mapping of options, but a {type(options).__name__}")
        return {name: dict(items(options)) for name, options in given.items()}
    names = listed(value, MAX_NAMES) if isinstance(value, Iterable) else [value]
    if all(isinstance(name, str) for name in names):
        return setting_parsers.names(",".join(names))
    raise TypeError("must be a name, a list of names, or a mapping of names to options")
