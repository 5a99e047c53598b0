"""Find trajectories in MLflow and Weave, by the variables that their exporters read."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import quote, urlencode

from otel_rollout.viewer.errors import ViewerError

MLFLOW: Final = "/mlflow"
"""Page that asks MLflow for a trace and leads to it. Links to it need no answer of MLflow."""
_TIMEOUT: Final = 5.0
"""Seconds to wait for MLflow's answer."""
_WANDB: Final = ("WANDB_API_KEY", "WANDB_ENTITY", "WANDB_PROJECT")
"""Variables of which one says that W&B is used. A key of an earlier login alone does not."""


class Trackers:
    """MLflow's and Weave's pages of trajectories. No address has a credential.

    Attributes:
        has_mlflow: whether ``MLFLOW_TRACKING_URI`` names a server.
    """

    def __init__(self) -> None:
        self.has_mlflow = os.environ.get("MLFLOW_TRACKING_URI", "").startswith(("http://", "https://"))
        self._weave = _weave_pages() if any(map(os.environ.get, _WANDB)) else None

    @property
    def are_known(self) -> bool:
        """Whether the environment names any tracker."""
        return self.has_mlflow or self._weave is not None

    def links(self, trace_id: str, root_id: str, project: str) -> list[tuple[str, str]]:
        """Return name and address of a trajectory's pages.

        Args:
            trace_id: id of its trace, in hex.
            root_id: id of its root span, in hex.
            project: the project of its run.
        """
        found = []
        if self.has_mlflow:
            found.append(("MLflow", f"{MLFLOW}?{urlencode({'trace': trace_id})}"))
        if self._weave is not None:
            found.append(("Weave", self._weave.page(trace_id, root_id, project)))
        return found

    def mlflow_page(self, trace_id: str) -> str:
        """Ask MLflow for a trace; return the address of its page.

        Args:
            trace_id: id of the trace, 32 hex digits.

        Raises:
            ViewerError: MLflow does not have it, or does not answer.
        """
        try:
            from otel_rollout_mlflow import settings
            from otel_rollout_mlflow.ids import PREFIX
            from otel_rollout_mlflow.server_target import ServerTarget

            resolved = settings.resolve(timeout=_TIMEOUT)
            target = ServerTarget(resolved)
        except (ModuleNotFoundError, ValueError) as error:
            raise ViewerError(f"MLflow cannot be asked: {error}") from error
        try:
            info = target.trace_info(f"{PREFIX}{trace_id}")
        except Exception as error:
            failure = getattr(error, "failure", None)
            raise ViewerError(f"MLflow cannot be asked: {failure.message if failure else error}") from error
        finally:
            target.close()
        if info is None:
            raise ViewerError(f"MLflow at {resolved.plain_uri} does not have this trajectory (yet).")
        location = info.get("trace_location", {}).get("mlflow_experiment", {})
        chosen = urlencode({"selectedEvaluationId": f"{PREFIX}{trace_id}", "startTimeLabel": "ALL"})
        experiment = quote(str(location.get("experiment_id", "0")), safe="")
        return f"{resolved.plain_uri}/#/experiments/{experiment}/traces?{chosen}"


class _WeavePages:
    """Weave's pages of calls.

    Args:
        app_url: address of W&B's pages.
        entity: user or team.
        project: project of every trajectory; None for the run's.
    """

    def __init__(self, app_url: str, entity: str, project: str | None) -> None:
        self._app_url = app_url
        self._entity = entity
        self._project = project

    def page(self, trace_id: str, root_id: str, project: str) -> str:
        """Return the address of a trajectory's call."""
        from opentelemetry.trace import SpanContext

        from otel_rollout_weave import ids
        from otel_rollout_weave.settings import valid_name

        call = ids.call_id_of(SpanContext(int(trace_id, 16), int(root_id, 16), is_remote=False))
        parts = (self._entity, self._project or valid_name(project))
        return "/".join([self._app_url, *(quote(part, safe="") for part in parts), "r", "call", call])


def _weave_pages() -> _WeavePages | None:
    """Return Weave's pages; None if the environment does not say where they are."""
    try:
        from otel_rollout_weave import settings

        found = settings.resolve(
            api_key=None,
            entity=None,
            project=None,
            run_id=None,
            base_url=None,
            trace_server_url=None,
            timeout=None,
        )
    except (ModuleNotFoundError, ValueError):
        return None
    if found.entity is None:  # the account's default: only W&B knows it
        return None
    return _WeavePages(found.app_url, found.entity, found.project)
