"""Declare every setting: name, environment variable, parser and default.

docs/configuration.md says what each setting means. A setting that OpenTelemetry's specification defines has
the specification's variable; the variables of other settings begin with ``OTEL_ROLLOUT_``.
:mod:`otel_rollout.settings_reader` reads the values.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from otel_rollout.base import redaction_names, setting_parsers

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
    """A setting does not exist, or its value cannot be used; the message says how to fix it."""


def _default_spool_dir() -> Path:
    """Return a local temporary directory of this user; home is often on NFS."""
    try:
        parent = tempfile.gettempdir()
    except OSError:  # no directory is writable: recording reports it later
        parent = "/tmp"  # noqa: S108
    return Path(parent) / f"otel-rollout-{os.getuid()}"


def _setting(
    variable: str,
    parse: Callable[[str], Any] = setting_parsers.text,
    default: Any = "",
    forwarder: Giver | None = None,
    otherwise: str | None = None,
) -> Any:
    """Declare a field of :class:`Settings`.

    Args:
        variable: the field's environment variable.
        parse: makes a value from the variable's text.
        default: the default value, or a function that makes it.
        forwarder: the process whose value the forwarder gets; None if the forwarder does not need it.
        otherwise: the value in place of one that cannot be used, if the default would record more than was
            meant; None stands for the default.
    """
    metadata = {"variable": variable, "parse": parse, "forwarder": forwarder, "otherwise": otherwise}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a process."""

    exporters: ExporterOptions = _setting(
        "OTEL_TRACES_EXPORTER", setting_parsers.names, dict, forwarder="starter"
    )
    sdk_disabled: bool = _setting("OTEL_SDK_DISABLED", setting_parsers.flag, False)
    project_name: str = _setting("OTEL_ROLLOUT_PROJECT", default="otel-rollout", forwarder="starter")
    experiment_name: str = _setting("OTEL_ROLLOUT_EXPERIMENT")
    service_name: str = _setting("OTEL_SERVICE_NAME")
    resource_attributes: Mapping[str, str] = _setting("OTEL_RESOURCE_ATTRIBUTES", setting_parsers.pairs, dict)
    sampler: str = _setting("OTEL_TRACES_SAMPLER", default="parentbased_always_on", forwarder="founder")
    sampler_arg: str = _setting("OTEL_TRACES_SAMPLER_ARG")
    sample_rate: float = _setting("OTEL_ROLLOUT_SAMPLE_RATE", setting_parsers.share, 1.0, forwarder="founder")
    sample_every: int = _setting(
        "OTEL_ROLLOUT_SAMPLE_EVERY", setting_parsers.positive, 1, forwarder="founder"
    )
    sample_validation: ValidationSampling = _setting(
        "OTEL_ROLLOUT_SAMPLE_VALIDATION",
        setting_parsers.choice(ValidationSampling),
        "sampled",
        forwarder="founder",
    )
    sample_groups: int = _setting("OTEL_ROLLOUT_SAMPLE_GROUPS", setting_parsers.count, 0, forwarder="founder")
    sample_seed: str = _setting("OTEL_ROLLOUT_SAMPLE_SEED", forwarder="founder")
    spool_dir: Path = _setting("OTEL_ROLLOUT_SPOOL_DIR", setting_parsers.path, _default_spool_dir)
    run_id: str = _setting("OTEL_ROLLOUT_RUN_ID", forwarder="starter")
    node: str = _setting("OTEL_ROLLOUT_NODE", forwarder="starter")
    home_node: str = _setting("OTEL_ROLLOUT_HOME_NODE", forwarder="starter")
    # The run's first process makes the next two for the others: where relative paths in exporter settings
    # (`sqlite:///mlflow.db`) start, and variables such as `MLFLOW_TRACKING_URI`, without credentials.
    working_dir: str = _setting("OTEL_ROLLOUT_WORKING_DIR", setting_parsers.path_text, forwarder="starter")
    target_variables: Mapping[str, str] = _setting(
        "OTEL_ROLLOUT_TARGET_VARIABLES", setting_parsers.pairs, dict
    )
    traceparent_hosts: str = _setting("OTEL_ROLLOUT_TRACEPARENT_HOSTS", setting_parsers.hosts, "private")
    identity_hosts: str = _setting("OTEL_ROLLOUT_IDENTITY_HOSTS", setting_parsers.hosts)
    application_provider: ApplicationProvider = _setting(
        "OTEL_ROLLOUT_APPLICATION_PROVIDER", setting_parsers.choice(ApplicationProvider), "auto"
    )
    capture_content: CaptureContent = _setting(
        "OTEL_ROLLOUT_CAPTURE_CONTENT", setting_parsers.choice(CaptureContent), "full", otherwise="none"
    )
    redact: str = _setting("OTEL_ROLLOUT_REDACT", forwarder="founder", otherwise=redaction_names.EVERYTHING)
    token2text: bool = _setting("OTEL_ROLLOUT_TOKEN2TEXT", setting_parsers.flag, False)
    tokenizer: str = _setting("OTEL_ROLLOUT_TOKENIZER", setting_parsers.path_text)
    turns: ExportedTurns = _setting(
        "OTEL_ROLLOUT_TURNS", setting_parsers.choice(ExportedTurns), "tokens", forwarder="founder"
    )
    value_limit: int = _setting("OTEL_ROLLOUT_VALUE_LIMIT", setting_parsers.positive, 1 << 20)
    spool_limit: int = _setting("OTEL_ROLLOUT_SPOOL_LIMIT", setting_parsers.count, 0)
    keep: bool = _setting("OTEL_ROLLOUT_KEEP", setting_parsers.flag, False, forwarder="founder")
    outcome_keep: str = _setting(
        "OTEL_ROLLOUT_OUTCOME_KEEP", setting_parsers.tail_rule_text, forwarder="founder"
    )
    outcome_score: str = _setting("OTEL_ROLLOUT_OUTCOME_SCORE", default="reward", forwarder="founder")
    outcome_bytes: int = _setting("OTEL_ROLLOUT_OUTCOME_BYTES", setting_parsers.count, 0, forwarder="founder")
    outcome_deadline: float = _setting(
        "OTEL_ROLLOUT_OUTCOME_DEADLINE", setting_parsers.seconds, 300.0, forwarder="founder"
    )
    receive: str = _setting("OTEL_ROLLOUT_RECEIVE", setting_parsers.listening_address)
    receive_token: str = _setting("OTEL_ROLLOUT_RECEIVE_TOKEN", setting_parsers.bearer_token)
    receive_traces: ReceivedTraces = _setting(
        "OTEL_ROLLOUT_RECEIVE_TRACES", setting_parsers.choice(ReceivedTraces), "all", forwarder="founder"
    )
    metrics: bool = _setting("OTEL_ROLLOUT_METRICS", setting_parsers.flag, False)
    training_tokens: bool = _setting("OTEL_ROLLOUT_TRAINING_TOKENS", setting_parsers.flag, False)
    step_metrics: StepMetrics = _setting(
        "OTEL_ROLLOUT_STEP_METRICS", setting_parsers.choice(StepMetrics), "none", forwarder="founder"
    )
    delta_compact: bool = _setting(
        "OTEL_ROLLOUT_DELTA_COMPACT", setting_parsers.flag, True, forwarder="founder"
    )
    delta_keep: str = _setting("OTEL_ROLLOUT_DELTA_KEEP", setting_parsers.age, forwarder="founder")
    shutdown_timeout: float = _setting("OTEL_ROLLOUT_SHUTDOWN_TIMEOUT", setting_parsers.seconds, 30.0)
    instrument: str = _setting("OTEL_ROLLOUT_INSTRUMENT")
    forwarder_linger: float = _setting(
        "OTEL_ROLLOUT_FORWARDER_LINGER", setting_parsers.seconds, 3600.0, forwarder="founder"
    )
    forwarder_variables: str = _setting("OTEL_ROLLOUT_FORWARDER_VARIABLES")

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
