"""Find trajectories in MLflow and Weave, by the variables that their exporters read."""

from __future__ import annotations

import contextlib
import os
from typing import Final
from urllib.parse import urlencode

from otel_rollout.exporting.entry_points import ADDRESSES, offered
from otel_rollout.look.errors import ViewerError

MLFLOW: Final = "/mlflow"
"""Page that asks MLflow for a trace and leads to it. Links to it need no answer of MLflow."""
_WANDB: Final = ("WANDB_API_KEY", "WANDB_ENTITY", "WANDB_PROJECT")
"""Variables of which one says that W&B is used. A key of an earlier login alone does not."""


class Trackers:
    """MLflow's and Weave's pages of trajectories. No address has a credential.

    Attributes:
        has_mlflow: whether ``MLFLOW_TRACKING_URI`` names a server.
    """

    def __init__(self) -> None:
        self.has_mlflow = os.environ.get("MLFLOW_TRACKING_URI", "").startswith(("http://", "https://"))
        self._weave_page = None
        if any(map(os.environ.get, _WANDB)):
            with contextlib.suppress(ModuleNotFoundError):
                self._weave_page = offered(ADDRESSES, "weave")()

    @property
    def are_known(self) -> bool:
        """Whether the environment names any tracker."""
        return self.has_mlflow or self._weave_page is not None

    def links(self, trace_id: str, root_id: str, project: str) -> list[tuple[str, str]]:
        """Return name and address of a trajectory's pages.

        Args:
            trace_id: id of its trace, in hex.
            root_id: id of its root span, in hex.
            project: the project of its run.
        """
        found = [("MLflow", f"{MLFLOW}?{urlencode({'trace': trace_id})}")] if self.has_mlflow else []
        if self._weave_page is not None:
            found.append(("Weave", self._weave_page(trace_id, root_id, project)))
        return found

    def mlflow_page(self, trace_id: str) -> str:
        """Ask MLflow for a trace; return the address of its page.

        Args:
            trace_id: id of the trace, 32 hex digits.

        Raises:
            ViewerError: MLflow does not have it, or does not answer.
        """
        try:
            return str(offered(ADDRESSES, "mlflow")(trace_id))
        except LookupError as error:
            raise ViewerError(str(error)) from error
        except Exception as error:
            failure = getattr(error, "failure", None)
            raise ViewerError(f"MLflow cannot be asked: {failure.message if failure else error}") from error
