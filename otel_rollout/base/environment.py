"""Recognize environment variables: of exporters, of access to targets, and of the run's receiver.

No other module lists prefixes of variables, or the variables of an exporter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
KNOWN_EXPORTERS: Final[Mapping[str, ExporterVariables]] = {
    "delta": ExporterVariables(prefixes=(_OPENTELEMETRY,), of_target=frozenset({"OTEL_ROLLOUT_DELTA_URI"})),
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
    """Return whether a variable begins with the name of an exporter outside ``KNOWN_EXPORTERS``.

    For example, ``LOGBOOK_URL`` begins with the name of the exporter ``logbook``.
    """
    return any(
        variable.startswith(exporter.upper().replace("-", "_") + "_")
        for exporter in exporters
        if exporter not in KNOWN_EXPORTERS
    )


# --- credentials, and what else gives access to a target ----------------------------------------------------


_CREDENTIAL_NAME: Final = re.compile("AUTH|CREDENTIAL|HEADERS|KEY|PASSW|SECRET|TOKEN")
_USER_INFORMATION: Final = re.compile(r"://[^/\s]*@")
_ACCESS_NAME: Final = re.compile(f"{_CREDENTIAL_NAME.pattern}|CA_BUNDLE|CERT|INSECURE|NETRC|PROXY|USERNAME")


def may_be_credential(name: str, value: str) -> bool:
    """Return whether a variable or option may hold a credential.

    The name says so (``API_KEY``), or the value is a URL with a user.
    """
    return _CREDENTIAL_NAME.search(name.upper()) is not None or _USER_INFORMATION.search(value) is not None


def without_credentials(value: str) -> str:
    """Return a URL without user name and password; any other text stays as it is."""
    return _USER_INFORMATION.sub("://", value)


def gives_access(name: str, value: str) -> bool:
    """Return whether a variable is a credential, a certificate, a proxy or the like.

    This package's own variables (``OTEL_ROLLOUT_``) never are.
    """
    if name.startswith("OTEL_ROLLOUT_"):
        return False
    return _ACCESS_NAME.search(name.upper()) is not None or _USER_INFORMATION.search(value) is not None


def access_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give a forwarder access to its targets."""
    return {name: value for name, value in environ.items() if value and gives_access(name, value)}


# --- variables that lead a child process to the run's receiver ----------------------------------------------
#
# An agent's OpenTelemetry SDK reads OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_ENDPOINT. This package reads
# them too: in a process that records with it, they would name another target, and the forwarder would deliver
# the run to the run's own receiver. So NAMES_VARIABLE tells them from the variables that the user has set.


NAMES_VARIABLE: Final = "OTEL_ROLLOUT_RECEIVER_VARIABLES"
"""Variable with the names of the variables that this package has set for a child process."""


def marked(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a child process, with ``NAMES_VARIABLE``, which holds their names."""
    return {**variables, NAMES_VARIABLE: ",".join(variables)}


def without_receiver(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return an environment without the variables that name the run's receiver."""
    names = environ.get(NAMES_VARIABLE)
    if names is None:
        return environ
    hidden = {NAMES_VARIABLE, *names.split(",")}
    return {name: value for name, value in environ.items() if name not in hidden}
