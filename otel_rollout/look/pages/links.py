"""Name the addresses of other pages. A page that is a file of its own has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from otel_rollout.table.filters import Step


class Links:
    """Addresses for the links of a page; None prints the text without a link.

    This class is for a page that stands alone. The server of ``otel-rollout view`` has a subclass.

    Attributes:
        places: text and address of the pages that every page leads to; empty for no line with them.
        status: when the page's data was read.
        problem: why newer data could not be read; empty without a problem.
        refresh_seconds: time after which a browser loads the page again; None for never.
        refresh_switch: text and address of this page with or without loading it again.
    """

    places: Sequence[tuple[str, str]] = ()
    status = ""
    problem = ""
    refresh_seconds: int | None = None
    refresh_switch: tuple[str, str] | None = None

    def step(self, step: Step, validate: bool = False) -> str | None:
        """Return the address of a step's page."""
        return None

    def timeline(self, step: Step, validate: bool = False) -> str | None:
        """Return the address of the page that shows a step's time."""
        return None

    def health(self) -> str | None:
        """Return the address of the page with the run's checks."""
        return None

    def trajectories(self, filters: Mapping[str, str] | None = None) -> str | None:
        """Return the address of the list of trajectories.

        Args:
            filters: field of its form → text.
        """
        return None

    def group(self, path: str) -> str | None:
        """Return the address of a group's page.

        Args:
            path: the group's name in the view ``groups``, such as ``1/29``.
        """
        return None

    def trajectory(self, reference: str) -> str | None:
        """Return the address of a trajectory's page.

        Args:
            reference: a name such as ``1/29/1``, or a trace id.
        """
        return None

    def comparison(self, left: str, right: str) -> str | None:
        """Return the address of the page that shows two trajectories side by side."""
        return None

    def elsewhere(self, trace_id: str) -> list[tuple[str, str]]:
        """Return name and address of the trajectory in other tools, such as MLflow."""
        return []
