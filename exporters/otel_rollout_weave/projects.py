"""Find or create the Weave project of a rollout's project, once."""

from __future__ import annotations

from typing import Final

from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout_weave.server import Server
from otel_rollout_weave.settings import WeaveSettings, valid_name

DEFAULT_PROJECT: Final = "uncategorized"
"""W&B's own name for the project of runs that name none."""


class Projects:
    """Ids (``entity/project``) of projects. Used under the exporter's lock."""

    def __init__(self, server: Server, settings: WeaveSettings) -> None:
        self._server = server
        self._settings = settings
        self._entity = settings.entity
        self._id_by_name: dict[str, str] = {}

    def id_of(self, project: str | None) -> str:
        """Return the id of a rollout project's Weave project; create a missing one.

        Args:
            project: the rollout's project; None if unknown.

        Raises:
            UndeliveredError: the account may not see or create the project (REFUSED), or W&B did not answer.
        """
        name = self._settings.project or valid_name(project or DEFAULT_PROJECT)
        if name not in self._id_by_name:
            entity = self.entity()
            found = self._server.project_name(entity, name) or self._server.create_project(entity, name)
            self._id_by_name[name] = f"{entity}/{found}"
        return self._id_by_name[name]

    def known_id(self, project: str | None) -> str | None:
        """Return a project's id if :meth:`id_of` has looked it up, else None."""
        return self._id_by_name.get(self._settings.project or valid_name(project or DEFAULT_PROJECT))

    def known_ids(self) -> list[str]:
        """Return all ids that :meth:`id_of` has looked up."""
        return list(self._id_by_name.values())

    def entity(self) -> str:
        """Return the entity of the settings, else the account's default entity."""
        if self._entity is None:
            self._entity = self._server.default_entity()
        if self._entity is None:
            raise UndeliveredError(
                FailureKind.REFUSED,
                "The W&B account has no default entity: set WANDB_ENTITY (or entity=) to a user or team.",
            )
        return self._entity

    def forget(self) -> None:
        """Clear the cache, so that every project is looked up again."""
        self._id_by_name.clear()
