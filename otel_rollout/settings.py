"""Declare every setting: name, environment variable, default and meaning.

The table in docs/configuration.md is generated from here. Settings that OpenTelemetry's specification defines
have its variables; others begin with ``OTEL_ROLLOUT_``. :mod:`otel_rollout.settings_reader` reads the values.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from otel_rollout.base import redaction_names, setting_parsers
from otel_rollout.base.environment import DELIVERY_PREFIXES

PREFIX: Final = "OTEL_ROLLOUT_"
"""Prefix of this package's variables."""
CONFIG_VARIABLE: Final = "OTEL_ROLLOUT_CONFIG"
"""Variable in which a run's founder passes its arguments and target to child processes, as JSON."""
WARNED_VARIABLE: Final = "OTEL_ROLLOUT_WARNED"
"""Variable set after a process has warned of unknown variables, so that its children do not warn."""

ExporterOptions: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Exporter name → keyword arguments of its constructor."""
ValidationSampling: TypeAlias = Literal["sampled", "always", "never"]
"""Which validation trajectories are recorded."""
CaptureContent: TypeAlias = Literal["full", "metadata", "none"]
"""How much of inputs, outputs and exceptions is recorded."""
ExportedTurns: TypeAlias = Literal["tokens", "all", "whole"]
"""How the context that each turn resends is exported."""
ApplicationProvider: TypeAlias = Literal["auto", "share", "apart"]
"""Whether spans of trajectories go through the application's own tracer provider."""
ReceivedTraces: TypeAlias = Literal["all", "trajectories"]
"""Which traces of other programs are recorded."""
StepMetrics: TypeAlias = Literal["none", "mlflow"]
"""The tracker whose run gets metrics of each step."""
Giver: TypeAlias = Literal["founder", "starter"]
"""The process whose value the forwarder gets: the run's founder, or the starter of the forwarder."""


class SettingsError(ValueError):
    """A setting does not exist, or its value cannot be used; says how to fix it."""


def _default_spool_dir() -> Path:
    """Return a local temporary directory of this user; home is often on NFS."""
    try:
        parent = tempfile.gettempdir()
    except OSError:  # no directory is writable: recording reports it later
        parent = "/tmp"  # noqa: S108
    return Path(parent) / f"otel-rollout-{os.getuid()}"


def _setting(
    variable: str,
    meaning: str = "",
    parse: Callable[[str], Any] = setting_parsers.text,
    default: Any = "",
    forwarder: Giver | None = None,
    otherwise: str | None = None,
) -> Any:
    """Declare a field of :class:`Settings`.

    Args:
        variable: the field's environment variable.
        meaning: the field's text in docs/configuration.md. Empty: the run's first
            process makes the value for the others, and no user sets it.
        parse: makes a value from the variable's text.
        default: the default value, or a function that makes it.
        forwarder: the process whose value the forwarder gets; None if the forwarder does not need it.
        otherwise: the value in place of one that cannot be used, if the default would record more than was
            meant; None stands for the default.
    """
    metadata = {
        "variable": variable,
        "meaning": meaning,
        "parse": parse,
        "forwarder": forwarder,
        "otherwise": otherwise,
    }
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a process."""

    exporters: ExporterOptions = _setting(
        "OTEL_TRACES_EXPORTER",
        "Where spans go: names of span exporters, comma separated (`mlflow`, `weave`, `otlp`, or any other "
        "in entry-point group `opentelemetry_traces_exporter`). Unset: tracing is off. `none` switches "
        "it off whatever else is set.",
        setting_parsers.names,
        dict,
        forwarder="starter",
    )
    sdk_disabled: bool = _setting(
        "OTEL_SDK_DISABLED", "`true` switches tracing off whatever else is set.", setting_parsers.flag, False
    )
    project_name: str = _setting(
        "OTEL_ROLLOUT_PROJECT",
        "Project of the run: the MLflow experiment or Weave project that traces go to.",
        setting_parsers.text,
        "otel-rollout",
        forwarder="starter",
    )
    experiment_name: str = _setting(
        "OTEL_ROLLOUT_EXPERIMENT",
        "Name of this training run within the project. Empty: the run id.",
    )
    service_name: str = _setting(
        "OTEL_SERVICE_NAME",
        "Resource attribute `service.name`. Empty: the project name.",
    )
    resource_attributes: Mapping[str, str] = _setting(
        "OTEL_RESOURCE_ATTRIBUTES",
        "Further resource attributes, `key=value,key=value`.",
        setting_parsers.pairs,
        dict,
    )
    sampler: str = _setting(
        "OTEL_TRACES_SAMPLER",
        "Which trajectories are recorded: `always_on`, `always_off`, `traceidratio`, their `parentbased_` "
        "forms, or any other in entry-point group `opentelemetry_traces_sampler`. Asked once for each "
        "trajectory, which is recorded whole or not at all. By groups: `OTEL_ROLLOUT_SAMPLE_RATE`.",
        setting_parsers.text,
        "parentbased_always_on",
        forwarder="founder",
    )
    sampler_arg: str = _setting(
        "OTEL_TRACES_SAMPLER_ARG",
        "The sampler's argument: for `traceidratio` a share from 0 to 1.",
    )
    sample_rate: float = _setting(
        "OTEL_ROLLOUT_SAMPLE_RATE",
        "Share of groups (the siblings sampled for one dataset row in one step) that are recorded, from 0 to "
        "1. See docs/volume.md.",
        setting_parsers.share,
        1.0,
        forwarder="founder",
    )
    sample_every: int = _setting(
        "OTEL_ROLLOUT_SAMPLE_EVERY",
        "Record only steps that are a multiple of this number.",
        setting_parsers.positive,
        1,
        forwarder="founder",
    )
    sample_validation: ValidationSampling = _setting(
        "OTEL_ROLLOUT_SAMPLE_VALIDATION",
        "Which validation trajectories are recorded: `always` all, `never` none, or `sampled` like training.",
        setting_parsers.choice(*get_args(ValidationSampling)),
        "sampled",
        forwarder="founder",
    )
    sample_groups: int = _setting(
        "OTEL_ROLLOUT_SAMPLE_GROUPS",
        "Most groups recorded of a batch of verl's, the only framework where a process sees a whole step. "
        "Elsewhere, set OTEL_ROLLOUT_SAMPLE_RATE. 0: no limit.",
        setting_parsers.count,
        0,
        forwarder="founder",
    )
    sample_seed: str = _setting(
        "OTEL_ROLLOUT_SAMPLE_SEED",
        "Any text that selects which groups are recorded. A job that runs again with the same seed and "
        "experiment name records the same groups.",
        forwarder="founder",
    )
    spool_dir: Path = _setting(
        "OTEL_ROLLOUT_SPOOL_DIR",
        "Local directory where spans are recorded before they are delivered. Default: "
        "`otel-rollout-<uid>` in the system's temporary directory.",
        setting_parsers.path,
        _default_spool_dir,
    )
    run_id: str = _setting(
        "OTEL_ROLLOUT_RUN_ID",
        "Name of the run's directory in the spool, which all its processes share. Default: made by the first "
        "process.",
        forwarder="starter",
    )
    node: str = _setting(
        "OTEL_ROLLOUT_NODE",
        "Name of this machine in the spool, where host name and boot id do not tell machines apart "
        "(containers that share a spool, say).",
        forwarder="starter",
    )
    home_node: str = _setting(
        "OTEL_ROLLOUT_HOME_NODE",
        "The only machine that writes to targets that are files, such as `sqlite:///`. Default: the machine "
        "of the run's first process.",
        forwarder="starter",
    )
    working_dir: str = _setting(
        "OTEL_ROLLOUT_WORKING_DIR",  # where relative paths in exporter settings (`sqlite:///mlflow.db`) start
        parse=setting_parsers.path_text,
        forwarder="starter",
    )
    target_variables: Mapping[str, str] = _setting(
        "OTEL_ROLLOUT_TARGET_VARIABLES",  # such as `MLFLOW_TRACKING_URI`, without credentials
        parse=setting_parsers.pairs,
        default=dict,
    )
    traceparent_hosts: str = _setting(
        "OTEL_ROLLOUT_TRACEPARENT_HOSTS",
        "Hosts, comma separated, `*` allowed, to which HTTP requests from inside a trajectory carry "
        "`traceparent` after `instrument()`. `private`: this machine, private addresses, and names that "
        "public DNS cannot have. `none`: no host. See docs/recording.md.",
        setting_parsers.hosts,
        "private",
    )
    identity_hosts: str = _setting(
        "OTEL_ROLLOUT_IDENTITY_HOSTS",
        "Hosts, comma separated, `*` and `private` allowed, to which a request with `traceparent` also "
        "carries the trajectory's identity.",
        setting_parsers.hosts,
    )
    application_provider: ApplicationProvider = _setting(
        "OTEL_ROLLOUT_APPLICATION_PROVIDER",
        "Whether spans of trajectories also go through the SDK provider that the application has set, to its "
        "exporters. `share`: yes. `apart`: no, then they cost less. `auto`: yes, unless all these exporters "
        "send to targets of this run, or the provider is Logfire's. See docs/configuration.md.",
        setting_parsers.choice(*get_args(ApplicationProvider)),
        "auto",
    )
    capture_content: CaptureContent = _setting(
        "OTEL_ROLLOUT_CAPTURE_CONTENT",
        "What is recorded of inputs, outputs and exceptions: `full`; `metadata`, of inputs and outputs the "
        "names, types and sizes; or `none`. With `metadata` and `none`, an exception's type is recorded, but "
        "neither its message nor its stack.",
        setting_parsers.choice(*get_args(CaptureContent)),
        "full",
        otherwise="none",
    )
    redact: str = _setting(
        "OTEL_ROLLOUT_REDACT",
        "What is masked before anything is written: `secrets` (texts that look like keys, tokens or "
        "passwords), `everything` (all text but names and identity), `module:function` of your own, or "
        "several, comma separated. See docs/reliability.md.",
        forwarder="founder",
        otherwise=redaction_names.EVERYTHING,
    )
    token2text: bool = _setting(
        "OTEL_ROLLOUT_TOKEN2TEXT",
        "`true` shows the text of token ids beside the ids, in outputs of operations. The tokenizer is the "
        "attribute `tokenizer` of the operation's object, or `OTEL_ROLLOUT_TOKENIZER`. See docs/training.md.",
        setting_parsers.flag,
        False,
    )
    tokenizer: str = _setting(
        "OTEL_ROLLOUT_TOKENIZER",
        "The tokenizer of operations whose object has none: a `tokenizer.json`, its directory, or the name "
        "of a model in this machine's Hugging Face cache. Nothing is downloaded.",
        setting_parsers.path_text,
    )
    turns: ExportedTurns = _setting(
        "OTEL_ROLLOUT_TURNS",
        "How a context that each turn resends is exported. `tokens`: only new token ids, messages in full. "
        "`all`: only new token ids and new messages. `whole`: everything in every turn. "
        "See docs/training.md.",
        setting_parsers.choice(*get_args(ExportedTurns)),
        "tokens",
        forwarder="founder",
    )
    value_limit: int = _setting(
        "OTEL_ROLLOUT_VALUE_LIMIT",
        "Bytes of JSON recorded of one input or output. The rest is cut, and its size is recorded.",
        setting_parsers.positive,
        1 << 20,
    )
    spool_limit: int = _setting(
        "OTEL_ROLLOUT_SPOOL_LIMIT",
        "Bytes of segments that a run may have on a machine. Spans beyond that are dropped and counted. 0: "
        "half of the free space on the spool's disk when a process begins to record, or 1 GiB where the file "
        "system does not report its free space.",
        setting_parsers.count,
        0,
    )
    keep: bool = _setting(
        "OTEL_ROLLOUT_KEEP",
        "`true` keeps delivered segments, compressed, in the run's `archive` instead of removing them.",
        setting_parsers.flag,
        False,
        forwarder="founder",
    )
    outcome_keep: str = _setting(
        "OTEL_ROLLOUT_OUTCOME_KEEP",
        f"Which groups are delivered, by their outcome: any of {setting_parsers.tail_rule_forms()}, comma "
        "separated. Empty: all. See docs/volume.md.",
        setting_parsers.tail_rule_text,
        forwarder="founder",
    )
    outcome_score: str = _setting(
        "OTEL_ROLLOUT_OUTCOME_SCORE",
        "Name of the score that `zero` and `spread` use.",
        setting_parsers.text,
        "reward",
        forwarder="founder",
    )
    outcome_bytes: int = _setting(
        "OTEL_ROLLOUT_OUTCOME_BYTES",
        "Most bytes of spans that a machine delivers of one step. 0: no limit.",
        setting_parsers.count,
        0,
        forwarder="founder",
    )
    outcome_deadline: float = _setting(
        "OTEL_ROLLOUT_OUTCOME_DEADLINE",
        "Seconds a group may wait for its siblings to end and for their scores before it is decided.",
        setting_parsers.seconds,
        300.0,
        forwarder="founder",
    )
    receive: str = _setting(
        "OTEL_ROLLOUT_RECEIVE",
        "`true`, or an address such as `127.0.0.1:4318`: a process beside training receives OTLP/HTTP from "
        "engines, sandboxes and agents in other languages on this machine, and records it in this run. With "
        "`true`, the port is a free one. See docs/engines.md.",
        setting_parsers.listening_address,
    )
    receive_token: str = _setting(
        "OTEL_ROLLOUT_RECEIVE_TOKEN",
        "The token that senders present to the receiver. Default: a random one for each run and machine. "
        "Required for an address other than the loopback.",
        setting_parsers.bearer_token,
    )
    receive_traces: ReceivedTraces = _setting(
        "OTEL_ROLLOUT_RECEIVE_TRACES",
        "Which traces the receiver takes: `all`, or only those of `trajectories` that this machine's "
        "processes have recorded. With `all`, a trace of no trajectory is delivered as a trace of its own.",
        setting_parsers.choice(*get_args(ReceivedTraces)),
        "all",
        forwarder="founder",
    )
    metrics: bool = _setting(
        "OTEL_ROLLOUT_METRICS",
        "`true` measures recorded spans for the MeterProvider that the application has set: model calls, "
        "tools, trajectories and rewards. See docs/operations.md.",
        setting_parsers.flag,
        False,
    )
    training_tokens: bool = _setting(
        "OTEL_ROLLOUT_TRAINING_TOKENS",
        "`true` records the values per token that training computed, such as log probabilities, once for "
        "each trajectory. See docs/recording.md.",
        setting_parsers.flag,
        False,
    )
    step_metrics: StepMetrics = _setting(
        "OTEL_ROLLOUT_STEP_METRICS",
        "`mlflow` writes rewards, turns, tokens, errors and durations of each step as metrics into the "
        "training's MLflow run. Needs the exporters `mlflow` and `delta`. See docs/mlflow.md.",
        setting_parsers.choice(*get_args(StepMetrics)),
        "none",
        forwarder="founder",
    )
    delta_compact: bool = _setting(
        "OTEL_ROLLOUT_DELTA_COMPACT",
        "`false`: no process compacts the rollout table by itself. See docs/table.md.",
        setting_parsers.flag,
        True,
        forwarder="founder",
    )
    delta_keep: str = _setting(
        "OTEL_ROLLOUT_DELTA_KEEP",
        "Age of a step's newest span, as `30d`, from which that process removes it. Empty: never.",
        setting_parsers.age,
        forwarder="founder",
    )
    shutdown_timeout: float = _setting(
        "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT",
        "Seconds that `shutdown()`, and the exit of the run's first process, wait for delivery.",
        setting_parsers.seconds,
        30.0,
    )
    instrument: str = _setting(
        "OTEL_ROLLOUT_INSTRUMENT",
        "Libraries whose instrumentors `instrument()` switches on, here and in Ray workers: names of entry "
        "points or of distributions, comma separated (`openai,langchain`), or `all` except HTTP clients. "
        "Empty or `none`: only those that the application switches on itself. See docs/agents.md.",
    )
    forwarder_linger: float = _setting(
        "OTEL_ROLLOUT_FORWARDER_LINGER",
        "Seconds a forwarder keeps trying an unreachable target after the last recording process ended.",
        setting_parsers.seconds,
        3600.0,
        forwarder="founder",
    )

    forwarder_variables: str = _setting(
        "OTEL_ROLLOUT_FORWARDER_VARIABLES",
        "Further environment variables, comma separated, `*` allowed, that the forwarder gets for its "
        "exporters. The forwarder always gets variables of proxies and certificates, and those that begin "
        "with "
        + ", ".join(f"`{prefix}`" for prefix in DELIVERY_PREFIXES[:-1])
        + f" or `{DELIVERY_PREFIXES[-1]}`, or with the name of another package's exporter (`LOGBOOK_` for "
        "`logbook`).",
    )

    @property
    def enabled(self) -> bool:
        """Whether spans are recorded."""
        return bool(self.exporters) and not self.sdk_disabled

    @property
    def samples_groups(self) -> bool:
        """Whether settings of head sampling leave out some groups."""
        is_limited = (self.sample_rate, self.sample_every, self.sample_groups) != (1, 1, 0)
        return is_limited or self.sample_validation == "never"

    @property
    def tail_rules(self) -> dict[str, float]:
        """Tail-sampling rule → its number; empty if all groups are delivered."""
        return setting_parsers.tail_rules(self.outcome_keep)

    @property
    def missing_exporters(self) -> list[str]:
        """The exporters that ``step_metrics`` needs and that are not among ``exporters``."""
        needed = [] if self.step_metrics == "none" else [self.step_metrics, "delta"]
        return [name for name in needed if name not in self.exporters]

    @property
    def experiment(self) -> str:
        """The name of the experiment, or the run's id if the experiment has no name."""
        return self.experiment_name or self.run_id


def variable_of(field: dataclasses.Field[Any]) -> str:
    """Return the environment variable of a field of :class:`Settings`."""
    return str(field.metadata["variable"])


def given_to_forwarder(giver: Giver) -> list[str]:
    """Return the names of the settings that ``giver`` passes to the forwarder."""
    return [field.name for field in dataclasses.fields(Settings) if field.metadata["forwarder"] == giver]
