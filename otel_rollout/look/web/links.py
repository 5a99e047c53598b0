"""Make the addresses of the served pages.

Names of runs, steps and trajectories are query parameters, because a part of a path cannot be ``..`` or hold
a slash.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode

from otel_rollout.exporting.entry_points import ADDRESSES, offered
from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.pages.rendering import Links

ALL_RUNS: Final = "/"
"""Address of the page of all runs."""
RUN_PARAMETERS: Final[tuple[str, ...]] = ("run", "project", "experiment")
"""Parameters that name a run, in the order of its fields."""
Elsewhere = Callable[[str], list[tuple[str, str]]]
"""Function that returns names and addresses of a trajectory in other tools, by trace id."""


class ServedLinks(Links):
    """Addresses of pages of one run.

    Args:
        run: the run; None on the page of all runs.
        elsewhere: finds a trajectory in other tools.
    """

    def __init__(self, run: Run | None = None, elsewhere: Elsewhere = lambda trace_id: []) -> None:
        self._run = run
        self._elsewhere = elsewhere
        pages = ("run", "trajectories", "health") if run else ()
        self.places = [("all runs", ALL_RUNS), *((name, self.to(f"/{name}")) for name in pages)]

    def of_run(self, run: Run) -> str:
        """Return the address of a run's page."""
        return ServedLinks(run).to("/run")

    def to(self, page: str, /, **parameters: str) -> str:
        """Return the address of a page of the run."""
        of_run = run_parameters(self._run) if self._run else {}
        query = urlencode({**of_run, **parameters}, errors="replace")
        return f"{page}?{query}" if query else page

    def elsewhere(self, trace_id: str) -> list[tuple[str, str]]:
        """Return name and address of the trajectory in other tools."""
        return self._elsewhere(trace_id)


def run_parameters(run: Run) -> dict[str, str]:
    """Return the parameters that name a run; a part that was not recorded has none."""
    return {name: value for name, value in zip(RUN_PARAMETERS, run, strict=True) if value is not None}


# --- pages of trajectories in MLflow and Weave -------------------------------------------------------------


MLFLOW: Final = "/mlflow"
"""Path that looks up a trace in MLflow and redirects to its page; a link to it needs no look-up."""
_WANDB: Final = ("WANDB_API_KEY", "WANDB_ENTITY", "WANDB_PROJECT")
"""Environment variables: each alone tells that W&B is used, unlike the stored key of an earlier login."""


class Trackers:
    """Addresses of trajectories in MLflow and Weave, without credentials.

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
        """Return name and address of a trajectory's page in each tracker.

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
            ViewerError: MLflow does not have the trace, or does not answer.
        """
        try:
            return str(offered(ADDRESSES, "mlflow")(trace_id))
        except LookupError as error:
            raise ViewerError(str(error)) from error
        except Exception as error:
            failure = getattr(error, "failure", None)
            raise ViewerError(f"MLflow cannot be asked: {failure.message if failure else error}") from error
