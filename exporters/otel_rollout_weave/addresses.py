"""Name the pages of trajectories in Weave, by the variables that the exporter reads."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from otel_rollout_weave import ids, settings


def pages() -> Callable[[str, str, str], str] | None:
    """Return a function that names a trajectory's page; None if the environment does not say where it is.

    The function takes the trace's id and the root span's id, in hex, and the project of the run.
    """
    try:
        found = settings.resolve()
    except ValueError:
        return None
    entity = found.entity
    if entity is None:  # the account's default: only W&B knows it
        return None

    def page(trace_id: str, root_id: str, project: str) -> str:
        call = ids.call_id_of(trace_id, root_id)
        parts = (entity, found.project or settings.valid_name(project))
        return "/".join([found.app_url, *(quote(part, safe="") for part in parts), "r", "call", call])

    return page
