"""Make the addresses of the served pages.

Names of runs, steps and trajectories are parameters of a query: a part of a path could not be ``..`` or hold
a slash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.pages.links import Links

NO_STEP: Final = "-"
"""Parameter of a step that was not recorded."""
ALL_RUNS: Final = "/"
"""Address of the page of all runs."""
Elsewhere = Callable[[str], list[tuple[str, str]]]
"""Function: trace id → name and address of the trajectory in other tools."""


class ServedLinks(Links):
    """Addresses of pages of one run.

    Args:
        run: the run; None on the page of all runs.
        elsewhere: finds a trajectory in other tools.
    """

    def __init__(self, run: Run | None = None, elsewhere: Elsewhere = lambda trace_id: []) -> None:
        self._run = run
        self._elsewhere = elsewhere
        self.places = self._places()

    def run(self, run_id: str | None) -> str | None:
        """Return the address of a run's page; of this run for its own id."""
        if self._run is not None and run_id == self._run.run_id:
            return self.of_run(self._run)
        return self._address("/run", {"run": run_id}, None)

    def of_run(self, run: Run) -> str:
        """Return the address of a run's page."""
        return self._address("/run", {}, run)

    def step(self, step: int | None, validate: bool = False) -> str | None:
        """Return the address of a step's page."""
        return self._here("/step", _of_step(step, validate))

    def timeline(self, step: int | None, validate: bool = False) -> str | None:
        """Return the address of the page that shows a step's time."""
        return self._here("/timeline", _of_step(step, validate))

    def health(self) -> str | None:
        """Return the address of the page with the run's checks."""
        return self._here("/health", {})

    def trajectories(self, filters: Mapping[str, str] | None = None) -> str:
        """Return the address of the list of trajectories."""
        return self._here("/trajectories", filters or {})

    def group(self, path: str) -> str | None:
        """Return the address of a group's page."""
        return self._here("/group", {"name": path})

    def trajectory(self, reference: str) -> str | None:
        """Return the address of a trajectory's page."""
        return self._here("/trajectory", {"name": reference})

    def comparison(self, left: str, right: str) -> str | None:
        """Return the address of the page that shows two trajectories side by side."""
        return self._here("/compare", {"left": left, "right": right})

    def elsewhere(self, trace_id: str) -> list[tuple[str, str]]:
        """Return name and address of the trajectory in other tools."""
        return self._elsewhere(trace_id)

    def _places(self) -> list[tuple[str, str]]:
        places = [("all runs", ALL_RUNS)]
        if self._run is not None:
            places += [
                (self._run.name, self.of_run(self._run)),
                ("trajectories", self.trajectories()),
                ("health", self._here("/health", {})),
            ]
        return places

    def _here(self, page: str, parameters: Mapping[str, str]) -> str:
        return self._address(page, parameters, self._run)

    def _address(self, page: str, parameters: Mapping[str, str | None], run: Run | None) -> str:
        named = run_parameters(run) if run is not None else {}
        given = {name: value for name, value in parameters.items() if value is not None}
        query = urlencode({**named, **given}, errors="replace")
        return f"{page}?{query}" if query else page


def run_parameters(run: Run) -> dict[str, str]:
    """Return the parameters that name a run; a part that was not recorded has none."""
    parts = {"run": run.run_id, "project": run.project, "experiment": run.experiment}
    return {name: value for name, value in parts.items() if value is not None}


def _of_step(step: int | None, validate: bool) -> dict[str, str]:
    return {"step": NO_STEP if step is None else str(step), **({"validate": "true"} if validate else {})}
