"""Name the page of a trajectory in Weave, by the variables that the exporter reads."""

from __future__ import annotations

from urllib.parse import quote

from opentelemetry.trace import SpanContext

from otel_rollout_weave import ids, settings


def page(trace_id: str, root_id: str, project: str) -> str | None:
    """Return the address of a trajectory's call; None if the environment does not say where it is.

    Args:
        trace_id: id of its trace, in hex.
        root_id: id of its root span, in hex.
        project: the project of its run.
    """
    try:
        found = settings.resolve(
            api_key=None,
            entity=None,
            project=None,
            run_id=None,
            base_url=None,
            trace_server_url=None,
            timeout=None,
        )
    except ValueError:
        return None
    if found.entity is None:  # the account's default: only W&B knows it
        return None
    call = ids.call_id_of(SpanContext(int(trace_id, 16), int(root_id, 16), is_remote=False))
    parts = (found.entity, found.project or settings.valid_name(project))
    return "/".join([found.app_url, *(quote(part, safe="") for part in parts), "r", "call", call])
