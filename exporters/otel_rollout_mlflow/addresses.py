"""Find the page of a trajectory on the MLflow server that the environment names."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from otel_rollout_mlflow import settings
from otel_rollout_mlflow.server_target import ServerTarget
from otel_rollout_mlflow.tags import TRACE_ID_PREFIX

_TIMEOUT: Final = 5.0
"""Seconds to wait for MLflow's answer."""


def page(trace_id: str) -> str:
    """Ask MLflow for a trace; return the address of its page, without a credential.

    Args:
        trace_id: id of the trace, 32 hex digits.

    Raises:
        ValueError: a setting is missing, malformed or not supported.
        LookupError: MLflow does not have the trace.
        UndeliveredError: MLflow does not answer, or is not usable.
    """
    resolved = settings.resolve(timeout=_TIMEOUT)
    target = ServerTarget(resolved)
    try:
        info = target.trace_info(f"{TRACE_ID_PREFIX}{trace_id}")
    finally:
        target.close()
    if info is None:
        raise LookupError(f"MLflow at {resolved.plain_uri} does not have this trajectory (yet).")
    location = info.get("trace_location", {}).get("mlflow_experiment", {})
    chosen = urlencode({"selectedEvaluationId": f"{TRACE_ID_PREFIX}{trace_id}", "startTimeLabel": "ALL"})
    experiment = quote(str(location.get("experiment_id", "0")), safe="")
    return f"{resolved.plain_uri}/#/experiments/{experiment}/traces?{chosen}"
