"""What can be set, by which environment variable, and what happens by default.

One dataclass holds every setting; each field names its variable, its default and its meaning, so the
table in docs/configuration.md is generated from here. Arguments of :func:`otel_rollout.configure` win
over the environment, which wins over the defaults. Names the OpenTelemetry specification defines are
used where it defines one; ours begin with ``OTEL_ROLLOUT_``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from otel_rollout.base.environment import DELIVERY_PREFIXES
from otel_rollout.base.suggest import closest, did_you_mean

CONFIG_VARIABLE = "OTEL_ROLLOUT_CONFIG"
"""Carries the arguments of ``configure()`` to child processes as JSON, so that a worker is set up like the
process that started it. Written by us, not meant to be set by hand."""

DELIVERY = (
    "forwarder_linger", "keep", "turns", "redact", "sample_seed",
    "outcome_keep", "outcome_score", "outcome_bytes", "outcome_deadline",
)  # fmt: skip
"""Settings by which a run is delivered: its first process decides, whoever starts the forwarder."""
DELIVERY_KEY = "delivery"
"""Where :data:`CONFIG_VARIABLE` holds those. A process may record with others, stricter redaction say."""
WARNED_VARIABLE = "OTEL_ROLLOUT_WARNED"
"""Set once this process or a parent has warned of unknown variables, so that children do not repeat it."""

_PREFIX = "OTEL_ROLLOUT_"
_MISSPELT = 0.9
"""Similarity from which a variable outside our prefix is taken for a misspelling of one of ours."""

ExporterOptions = Mapping[str, Mapping[str, Any]]
"""Exporter name → keyword arguments of its constructor."""


class SettingsError(ValueError):
    """A setting has a value that cannot be used; the message names where it came from and the fix."""


def _text(raw: str) -> str:
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid UTF-8") from None
    return raw


def _path_text(raw: str) -> str:
    """A path as this process can hand it to the system: it may hold bytes that are no text."""
    if "\0" in raw:
        raise ValueError("holds a zero byte, which no path can")
    try:
        os.fsencode(raw)
    except UnicodeEncodeError:
        raise ValueError(
            f"cannot be the name of a file in this process, whose encoding for names is "
            f"{sys.getfilesystemencoding()}: set LC_ALL=C.UTF-8 or PYTHONUTF8=1"
        ) from None
    return raw


def _path(raw: str) -> Path:
    return Path(_path_text(raw))


def _flag(raw: str) -> bool:
    """Only ``true`` switches a boolean on, as the OpenTelemetry specification demands."""
    flag = raw.strip().lower()
    if flag not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return flag == "true"


def switched_off(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings by which variables switch tracing off, whatever arguments say; empty if none do."""
    if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return {"exporters": {}}
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {"sdk_disabled": True}
    return {}


def _number(kind: type[int] | type[float], least: float, raw: str) -> Any:
    try:
        number = kind(raw)
    except ValueError:
        raise ValueError(f"is not {'an integer' if kind is int else 'a number'}") from None
    if math.isnan(number):
        raise ValueError("is not a number")
    if number < least:
        raise ValueError(f"is less than {least}")
    return number


def _share(raw: str) -> float:
    number: float = _number(float, 0, raw)
    if number > 1:
        raise ValueError("is no share from 0 to 1")
    return number


def _choice(allowed: tuple[str, ...], raw: str) -> str:
    chosen = raw.strip().lower()
    if chosen not in allowed:
        raise ValueError(f"is none of {', '.join(allowed)}")
    return chosen


_OUTCOMES: Mapping[str, Callable[[str], float] | None] = {
    "errors": None,
    "validation": None,
    "zero": None,
    "spread": functools.partial(_number, float, 0),
    "slow": functools.partial(_number, float, 1),
    "long": functools.partial(_number, float, 1),
    "rate": _share,
}
"""Reasons to deliver a group, and how the number of those that take one is read."""


def outcomes(raw: str) -> dict[str, float]:
    """``errors,spread=0.5``: reason → its number; 1 for those that take none.

    Raises:
        ValueError: naming the part that cannot be used.
    """
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in raw.split(","))):
        name, separator, number = (piece.strip() for piece in part.partition("="))
        if name not in _OUTCOMES:
            meant = did_you_mean(name, _OUTCOMES)
            raise ValueError(f"has {name!r}, which is none of {', '.join(_OUTCOMES)}.{meant}".rstrip("."))
        parse = _OUTCOMES[name]
        if (parse is None) is bool(separator):
            needs = f"takes no number: {name}" if parse is None else f"needs a number: {name}=0.5"
            raise ValueError(f"has {part!r}, but {name} {needs}")
        try:
            found[name] = parse(number) if parse else 1.0
        except ValueError as error:
            raise ValueError(f"has {part!r}, where {number!r} {error}") from None
    return found


def _outcome_list(raw: str) -> str:
    outcomes(raw)
    return raw.strip()


def _names(raw: str) -> dict[str, dict[str, Any]]:
    names = [name.strip() for name in raw.split(",")]
    return {name: {} for name in names if name and name != "none"}


def _pairs(raw: str) -> dict[str, str]:
    """``key=value,key=value`` with percent-encoding, the format of ``OTEL_RESOURCE_ATTRIBUTES``."""
    pairs: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in _text(raw).split(","))):
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            raise ValueError("has an entry that is not key=value")
        pairs[unquote(key.strip())] = unquote(value.strip())
    return pairs


def _default_spool_dir() -> Path:
    """A local temporary directory of this user; never the home directory, which is often on NFS."""
    try:
        parent = tempfile.gettempdir()
    except OSError:  # nothing can be written anywhere: recording says so, if it is asked for
        parent = "/tmp"  # noqa: S108
    return Path(parent) / f"otel-rollout-{os.getuid()}"


def _setting(variable: str, meaning: str, parse: Callable[[str], Any], default: Any) -> Any:
    metadata = {"variable": variable, "meaning": meaning, "parse": parse}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_SIMPLE: Final = (str, int, float)
_TEXT_OR_NUMBER: Final = ("sampler_arg", "sample_seed")
_EXPECTED: Final = {"str": "text", "int": "a whole number", "float": "a number", "Path": "text or a Path"}
"""What an argument of ``configure()`` must be, by the type of its field."""

_bytes = functools.partial(_number, int, 1)
_count = functools.partial(_number, int, 0)
_seconds = functools.partial(_number, float, 0)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that can be set. Fields carry their variable, parser and meaning as metadata."""

    exporters: ExporterOptions = _setting(
        "OTEL_TRACES_EXPORTER",
        "Where spans go: names of span exporters, comma separated (`mlflow`, `weave`, `otlp`, or any other "
        "in entry-point group `opentelemetry_traces_exporter`). Unset: tracing is off. `none` switches "
        "it off whatever else is set.",
        _names,
        dict,
    )
    sdk_disabled: bool = _setting(
        "OTEL_SDK_DISABLED", "`true` switches tracing off whatever else is set.", _flag, False
    )
    project_name: str = _setting(
        "OTEL_ROLLOUT_PROJECT",
        "Project of the run: the MLflow experiment or Weave project that traces go to.",
        _text,
        "otel-rollout",
    )
    experiment_name: str = _setting(
        "OTEL_ROLLOUT_EXPERIMENT",
        "Name of this training run within the project. Empty: the run id.",
        _text,
        "",
    )
    service_name: str = _setting(
        "OTEL_SERVICE_NAME", "Resource attribute `service.name`. Empty: the project name.", _text, ""
    )
    resource_attributes: Mapping[str, str] = _setting(
        "OTEL_RESOURCE_ATTRIBUTES", "Further resource attributes, `key=value,key=value`.", _pairs, dict
    )
    sampler: str = _setting(
        "OTEL_TRACES_SAMPLER",
        "Which trajectories are recorded: `always_on`, `always_off`, `traceidratio`, their `parentbased_` "
        "forms, or any other in entry-point group `opentelemetry_traces_sampler`. Asked once for each "
        "trajectory, which is recorded whole or not at all. By groups: `OTEL_ROLLOUT_SAMPLE_RATE`.",
        _text,
        "parentbased_always_on",
    )
    sampler_arg: str = _setting(
        "OTEL_TRACES_SAMPLER_ARG",
        "The sampler's argument: for `traceidratio` a share from 0 to 1.",
        _text,
        "",
    )
    sample_rate: float = _setting(
        "OTEL_ROLLOUT_SAMPLE_RATE",
        "Share of groups (the siblings sampled for one dataset row in one step) that are recorded, from 0 to "
        "1. See docs/sampling.md.",
        _share,
        1.0,
    )
    sample_every: int = _setting(
        "OTEL_ROLLOUT_SAMPLE_EVERY",
        "Record only steps that are a multiple of this number.",
        functools.partial(_number, int, 1),
        1,
    )
    sample_validation: str = _setting(
        "OTEL_ROLLOUT_SAMPLE_VALIDATION",
        "Which validation trajectories are recorded: `always` all, `never` none, or `sampled` like training.",
        functools.partial(_choice, ("sampled", "always", "never")),
        "sampled",
    )
    sample_groups: int = _setting(
        "OTEL_ROLLOUT_SAMPLE_GROUPS",
        "Groups recorded of a step. With verl this is the most of a batch; elsewhere it is an average, which "
        "needs OTEL_ROLLOUT_GROUPS_PER_STEP. 0: no limit.",
        _count,
        0,
    )
    groups_per_step: int = _setting(
        "OTEL_ROLLOUT_GROUPS_PER_STEP",
        "Number of groups in a step, of which OTEL_ROLLOUT_SAMPLE_GROUPS are recorded. 0: not known.",
        _count,
        0,
    )
    sample_seed: str = _setting(
        "OTEL_ROLLOUT_SAMPLE_SEED",
        "Any text that selects which groups are recorded. A job that runs again with the same seed and "
        "experiment name records the same groups.",
        _text,
        "",
    )
    spool_dir: Path = _setting(
        "OTEL_ROLLOUT_SPOOL_DIR",
        "Local directory where spans are recorded before they are delivered. Default: "
        "`otel-rollout-<uid>` in the system's temporary directory.",
        _path,
        _default_spool_dir,
    )
    run_id: str = _setting(
        "OTEL_ROLLOUT_RUN_ID",
        "Name of the run's directory in the spool, which all its processes share. Default: made by the first "
        "process.",
        _text,
        "",
    )
    node: str = _setting(
        "OTEL_ROLLOUT_NODE",
        "Name of this machine in the spool, where host name and boot id do not tell machines apart "
        "(containers that share a spool, say).",
        _text,
        "",
    )
    home_node: str = _setting(
        "OTEL_ROLLOUT_HOME_NODE",
        "The only machine that writes to targets that are files, such as `sqlite:///`. Default: the machine "
        "of the run's first process.",
        _text,
        "",
    )
    working_dir: str = _setting(
        "OTEL_ROLLOUT_WORKING_DIR",
        "Directory that relative paths in exporter settings (`sqlite:///mlflow.db`) start from. Default: the "
        "working directory of the run's first process.",
        _path_text,
        "",
    )
    target_variables: Mapping[str, str] = _setting(
        "OTEL_ROLLOUT_TARGET_VARIABLES",
        "The variables that name the run's target, such as `MLFLOW_TRACKING_URI`, as its first process had "
        "them, `NAME=value,NAME=value`, without credentials. Set by the first of them.",
        _pairs,
        dict,
    )
    identity_hosts: str = _setting(
        "OTEL_ROLLOUT_IDENTITY_HOSTS",
        "Hosts, comma separated, `*` allowed, to which `inject_headers` sends a trajectory's identity in "
        "addition to the W3C headers.",
        _text,
        "",
    )
    capture_content: str = _setting(
        "OTEL_ROLLOUT_CAPTURE_CONTENT",
        "What is recorded of inputs, outputs and exceptions: `full`; `metadata`, names, types and sizes; or "
        "`none`, of exceptions the type alone.",
        functools.partial(_choice, ("full", "metadata", "none")),
        "full",
    )
    redact: str = _setting(
        "OTEL_ROLLOUT_REDACT",
        "What is masked before anything is written: `secrets` (texts that look like keys, tokens or "
        "passwords), `module:function` of your own, or several, comma separated. See docs/security.md.",
        _text,
        "",
    )
    token2text: bool = _setting(
        "OTEL_ROLLOUT_TOKEN2TEXT",
        "`true` shows the text of token ids beside the ids, in outputs of operations. The tokenizer is the "
        "attribute `tokenizer` of the operation's object, or `OTEL_ROLLOUT_TOKENIZER`. See docs/tokens.md.",
        _flag,
        False,
    )
    tokenizer: str = _setting(
        "OTEL_ROLLOUT_TOKENIZER",
        "The tokenizer of operations whose object has none: a `tokenizer.json`, its directory, or the name "
        "of a model in this machine's Hugging Face cache. Nothing is downloaded.",
        _path_text,
        "",
    )
    turns: str = _setting(
        "OTEL_ROLLOUT_TURNS",
        "How a context that each turn resends is exported. `tokens`: only new token ids, messages in full. "
        "`all`: only new token ids and new messages. `whole`: everything in every turn. See docs/tokens.md.",
        functools.partial(_choice, ("tokens", "all", "whole")),
        "tokens",
    )
    value_limit: int = _setting(
        "OTEL_ROLLOUT_VALUE_LIMIT",
        "Bytes of JSON recorded of one input or output. The rest is cut, and its size is recorded.",
        _bytes,
        1 << 20,
    )
    segment_bytes: int = _setting(
        "OTEL_ROLLOUT_SEGMENT_BYTES",
        "Size at which a process begins a new segment file in the spool.",
        _bytes,
        64 << 20,
    )
    spool_limit: int = _setting(
        "OTEL_ROLLOUT_SPOOL_LIMIT",
        "Bytes of segments that a run may have on a machine. Spans beyond that are dropped and counted. 0: "
        "half of the free space on the spool's disk when a process begins to record, or 1 GiB where the file "
        "system does not report its free space.",
        _count,
        0,
    )
    spool_full: str = _setting(
        "OTEL_ROLLOUT_SPOOL_FULL",
        "What is dropped when the spool fills up. `newest`: spans that end while it is full. `trajectories`: "
        "from half of the limit on, more and more whole groups are not recorded, so that trajectories that "
        "have begun stay complete.",
        functools.partial(_choice, ("newest", "trajectories")),
        "newest",
    )
    keep: bool = _setting(
        "OTEL_ROLLOUT_KEEP",
        "`true` keeps delivered segments, compressed, in the run's `archive` instead of removing them.",
        _flag,
        False,
    )
    outcome_keep: str = _setting(
        "OTEL_ROLLOUT_OUTCOME_KEEP",
        "Which groups are delivered, by their outcome: any of `errors`, `validation`, `zero`, "
        "`spread=X`, `slow=X`, `long=X`, `rate=X`, comma separated. Empty: all. See docs/sampling.md.",
        _outcome_list,
        "",
    )
    outcome_score: str = _setting(
        "OTEL_ROLLOUT_OUTCOME_SCORE", "Name of the score that `zero` and `spread` use.", _text, "reward"
    )
    outcome_bytes: int = _setting(
        "OTEL_ROLLOUT_OUTCOME_BYTES",
        "Most bytes of spans that a machine delivers of one step. 0: no limit.",
        _count,
        0,
    )
    outcome_deadline: float = _setting(
        "OTEL_ROLLOUT_OUTCOME_DEADLINE",
        "Seconds a group may wait for its siblings to end and for their scores before it is decided.",
        _seconds,
        300.0,
    )
    shutdown_timeout: float = _setting(
        "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT",
        "Seconds that `shutdown()`, and the exit of the run's first process, wait for delivery.",
        _seconds,
        30.0,
    )
    forwarder_linger: float = _setting(
        "OTEL_ROLLOUT_FORWARDER_LINGER",
        "Seconds a forwarder keeps trying an unreachable target after the last recording process ended.",
        _seconds,
        3600.0,
    )

    forwarder_variables: str = _setting(
        "OTEL_ROLLOUT_FORWARDER_VARIABLES",
        "Further environment variables, comma separated, `*` allowed, that the forwarder gets for its "
        "exporters. Passed anyway are those that begin with "
        + ", ".join(f"`{prefix}`" for prefix in DELIVERY_PREFIXES[:-1])
        + f" or `{DELIVERY_PREFIXES[-1]}`, and those of proxies and certificates.",
        _text,
        "",
    )

    @property
    def enabled(self) -> bool:
        """Whether spans are recorded at all."""
        return bool(self.exporters) and not self.sdk_disabled

    @property
    def outcomes(self) -> dict[str, float]:
        """Why groups are delivered: reason → its number; empty where all are."""
        return outcomes(self.outcome_keep)

    @property
    def experiment(self) -> str:
        """The experiment's name, or the run's id."""
        return self.experiment_name or self.run_id


def variable_of(field: dataclasses.Field[Any]) -> str:
    """Name of the environment variable behind a field of :class:`Settings`."""
    return str(field.metadata["variable"])


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Whether variables switch tracing on. Asks nothing else of the machine."""
    is_disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return bool(_names(environ.get("OTEL_TRACES_EXPORTER", ""))) and not is_disabled


def from_environment(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Read the settings of this process.

    A wrong value never stops a training run: it is reported and the default used.

    Returns:
        The settings, and one sentence for each value that could not be used.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for field in dataclasses.fields(Settings):
        raw = environ.get(variable_of(field))
        if raw is None or not raw.strip():  # an empty variable counts as unset (OTel specification)
            continue
        try:
            values[field.name] = field.metadata["parse"](raw)
        except ValueError as error:
            shown = "" if field.name == "resource_attributes" else f"={raw!r}"  # attributes may hold a secret
            problems.append(f"{variable_of(field)}{shown} {error}; the default is used.")
    try:
        values |= inherited(environ)
    except ValueError as error:
        problems.append(f"{CONFIG_VARIABLE} {error}; it is ignored.")
    return Settings(**values | switched_off(environ)), problems


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return one sentence for each variable that looks like one of ours and is none.

    That is every unknown one with our prefix, and others that differ from one of ours by a letter or two
    (``OTEL_TRACE_EXPORTER``).
    """
    known = [variable_of(field) for field in dataclasses.fields(Settings)]
    without_prefix = {name.removeprefix(_PREFIX): name for name in known}
    found = []
    for name in sorted(set(environ) - {*known, CONFIG_VARIABLE, WARNED_VARIABLE}):
        if name.startswith(_PREFIX):
            meant = closest(name.removeprefix(_PREFIX), without_prefix)
            suggestion = f" Did you mean {without_prefix[meant]!r}?" if meant else ""
            found.append(f"{name} is not a variable of otel-rollout and has no effect.{suggestion}")
        elif name.startswith("OTEL") and (meant := closest(name, known, _MISSPELT)):
            found.append(f"{name} has no effect on otel-rollout. Did you mean {meant!r}?")
    return found


def inherited(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the process that founded the run has told this one: arguments, target, run id.

    Raises:
        ValueError: when the variable cannot be read.
    """
    raw = environ.get(CONFIG_VARIABLE)
    if not raw:
        return {}
    try:
        arguments = json.loads(raw)
        if not isinstance(arguments, dict):
            raise TypeError("it holds no object")
        arguments.pop(DELIVERY_KEY, None)
        return checked_arguments(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot be read ({error})") from None


def delivery_of(run_id: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the delivery settings that a run's first process has told; empty where it has told none."""
    try:
        told = json.loads(environ.get(CONFIG_VARIABLE, ""))
        return checked_arguments(told[DELIVERY_KEY]) if told["run_id"] == run_id else {}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def to_variable(arguments: Mapping[str, Any]) -> str:
    """Encode checked ``configure()`` arguments for :data:`CONFIG_VARIABLE`.

    In ASCII: paths may hold bytes that are no text, and a process may not be able to put more into its
    environment.
    """
    return json.dumps(dict(arguments), default=str)


def as_inherited(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked arguments as child processes read them."""
    return checked_arguments(json.loads(to_variable(arguments)))


def checked_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check and normalise arguments of ``configure()``; None means "not given".

    Raises:
        SettingsError: for an argument that does not exist or has an unusable value.
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
        except (TypeError, ValueError) as error:
            shown = "…" if name in ("exporters", "resource_attributes") else repr(value)  # may hold a secret
            raise SettingsError(f"configure({name}={shown}): the value {error}.") from None
    return checked


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    if field.name == "exporters":
        return _exporter_options(value)
    if field.metadata["parse"] is _pairs:
        if not isinstance(value, Mapping):
            raise TypeError("must be a mapping of names to values")
        if not all(isinstance(key, str) and isinstance(entry, _SIMPLE) for key, entry in value.items()):
            raise TypeError("must map text to text, numbers or booleans")
        text = str if field.name == "target_variables" else _text  # an environment may hold any bytes
        return {text(key): text(str(entry)) for key, entry in value.items()}
    if field.metadata["parse"] is _flag:
        if isinstance(value, bool):
            return value
        raise TypeError("must be True or False")
    if isinstance(value, bool) or not isinstance(value, _taken(field)):
        raise TypeError(f"must be {_EXPECTED[str(field.type)]}, not {type(value).__name__}")
    return field.metadata["parse"](str(value))


def _taken(field: dataclasses.Field[Any]) -> tuple[type, ...]:
    """The types that an argument may have; text is read as from a variable."""
    if field.metadata["parse"] in (_path, _path_text):
        return (str, Path)
    if field.type == "str" and field.name not in _TEXT_OR_NUMBER:
        return (str,)
    return (str, int, float)


def _exporter_options(value: str | Iterable[str] | ExporterOptions) -> dict[str, dict[str, Any]]:
    if isinstance(value, str):
        return _names(value)
    if isinstance(value, Mapping):
        for name, options in value.items():
            if not isinstance(name, str):
                raise TypeError(f"has {name!r} as the name of an exporter, which must be text")
            if not isinstance(options, Mapping):
                raise TypeError(f"has for {name!r} no mapping of options, but a {type(options).__name__}")
        return {name: dict(options) for name, options in value.items()}
    names = list(value) if isinstance(value, Iterable) else [value]
    if all(isinstance(name, str) for name in names):
        return _names(",".join(names))
    raise TypeError("must be a name, a list of names, or a mapping of names to options")


def markdown_table() -> str:
    """The settings as a table for docs/configuration.md."""
    rows = ["| variable | `configure()` argument | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(Settings):
        default = "" if field.default is dataclasses.MISSING else field.default
        shown = f"`{default}`" if default not in ("", False) else ""
        rows.append(f"| `{variable_of(field)}` | `{field.name}` | {shown} | {field.metadata['meaning']} |")
    return "\n".join(rows) + "\n"
