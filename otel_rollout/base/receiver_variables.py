"""Tell the variables that lead a child process to the run's receiver from those that the user has set.

An agent's OpenTelemetry SDK reads ``OTEL_TRACES_EXPORTER`` and ``OTEL_EXPORTER_OTLP_ENDPOINT``. This package
reads them too: in a process that records with it, they would name another target, and the forwarder would
deliver the run to the run's own receiver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NAMES_VARIABLE: Final = "OTEL_ROLLOUT_RECEIVER_VARIABLES"
"""Variable with the names of the variables that this package has set for a child process."""


def marked(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a child process, and the one that names them."""
    return {**variables, NAMES_VARIABLE: ",".join(variables)}


def without_receiver(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return an environment without the variables that name the run's receiver."""
    names = environ.get(NAMES_VARIABLE)
    if names is None:
        return environ
    hidden = {NAMES_VARIABLE, *names.split(",")}
    return {name: value for name, value in environ.items() if name not in hidden}
