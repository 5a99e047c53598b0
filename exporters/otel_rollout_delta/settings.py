"""Resolve the exporter's settings: arguments, else the environment."""

from __future__ import annotations

from otel_rollout.exporting.arguments import given
from otel_rollout.table.location import DEFAULT_URI, Location, location_of

URI: str = "OTEL_ROLLOUT_DELTA_URI"
"""Variable with the table's address."""


def resolve(uri: str | None) -> Location:
    """Return the table's address: the argument, the variable, or ``rollouts`` in the working directory.

    Raises:
        ValueError: the address is malformed; the message names its argument or variable.
    """
    found, source = given("uri", uri, URI)
    return location_of(found.strip() if found is not None else DEFAULT_URI, source)
