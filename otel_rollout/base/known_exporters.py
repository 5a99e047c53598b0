"""List the exporters whose environment variables the package knows.

No other module lists prefixes of variables, or the variables of an exporter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class ExporterVariables:
    """The environment variables of one exporter.

    Attributes:
        prefixes: prefixes of its variables.
        of_target: variables that name its target.
        set_by_client: other variables that name its target. The tracker's client sets them in a process that
            starts a run, so they do not distinguish runs.
        required: an option and a variable. The exporter has no target until one of the two is set.
    """

    prefixes: tuple[str, ...]
    of_target: frozenset[str]
    set_by_client: frozenset[str] = frozenset()
    required: tuple[str, str] | None = None


_OPENTELEMETRY: Final = "OTEL_"
KNOWN_EXPORTERS: Final[Mapping[str, ExporterVariables]] = MappingProxyType(
    {
        "delta": ExporterVariables(
            prefixes=(_OPENTELEMETRY,),
            of_target=frozenset({"OTEL_ROLLOUT_DELTA_URI"}),
        ),
        "mlflow": ExporterVariables(
            prefixes=("MLFLOW_",),
            of_target=frozenset({"MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"}),
            set_by_client=frozenset({"MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID"}),
            required=("tracking_uri", "MLFLOW_TRACKING_URI"),
        ),
        "weave": ExporterVariables(
            prefixes=("WANDB_", "WF_"),
            of_target=frozenset(
                {
                    "WANDB_BASE_URL",
                    "WANDB_PUBLIC_BASE_URL",
                    "WANDB_ENTITY",
                    "WANDB_PROJECT",
                    "WF_TRACE_SERVER_URL",
                }
            ),
            set_by_client=frozenset({"WANDB_RUN_ID"}),
        ),
    }
)
"""Exporter → its variables. Variables of an exporter that is not listed here begin with ``OTEL_`` or with the
exporter's name, or the setting ``forwarder_variables`` names them."""
PREFIXES: Final = tuple(
    dict.fromkeys(
        [_OPENTELEMETRY, *(prefix for exporter in KNOWN_EXPORTERS.values() for prefix in exporter.prefixes)]
    )
)
"""Prefixes of OpenTelemetry's and the trackers' variables, which every process of a run gets."""
DELIVERY_PREFIXES: Final = (*PREFIXES, "AWS_", "AZURE_", "GOOGLE_")
"""``PREFIXES``, and those of cloud SDKs: variables that exporters may need."""


def begins_with_exporter(variable: str, exporters: Iterable[str]) -> bool:
    """Return whether a variable begins with the name of an exporter that is not listed: ``LOGBOOK_URL``."""
    return any(
        variable.startswith(exporter.upper().replace("-", "_") + "_")
        for exporter in exporters
        if exporter not in KNOWN_EXPORTERS
    )
