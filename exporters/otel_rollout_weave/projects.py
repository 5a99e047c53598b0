"""Which Weave project the calls of a rollout's project go to: asked or created once, then remembered."""

from __future__ import annotations

from typing import Final

from otel_rollout.exporting.api import FailureKind
from otel_rollout_weave.errors import UndeliveredError
from otel_rollout_weave.server import Server
from otel_rollout_weave.settings import Settings, valid_name

DEFAULT_PROJECT: Final = "uncategorized"
"""W&B's own name for where runs go that name no project."""


class Projects:
    """Ids (``entity/project``) by the rollout's name. Not thread-safe: called under the exporter's lock."""

    def __init__(self, server: Server, settings: Settings) -> None:
        self._server = server
        self._settings = settings
        self._entity = settings.entity
        self._id_by_name: dict[str, str] = {}

    def id_of(self, project: str | None) -> str:
        """The id of the project that spans of ``project`` (None: none known) go to, which then exists.

        Raises:
            UndeliveredError: it may not be seen or created (REFUSED), or W&B did not answer.
        """
        name = self._settings.project or valid_name(project or DEFAULT_PROJECT)
        if name not in self._id_by_name:
            entity = self.entity()
            found = self._server.project_name(entity, name) or self._server.create_project(entity, name)
            self._id_by_name[name] = f"{entity}/{found}"
        return self._id_by_name[name]

    def known_id(self, project: str | None) -> str | None:
        """The id of the project that spans of ``project`` went to; None if there were none yet."""
        return self._id_by_name.get(self._settings.project or valid_name(project or DEFAULT_PROJECT))

    def known_ids(self) -> list[str]:
        """The projects written to so far."""
        return list(self._id_by_name.values())

    def entity(self) -> str:
        """The entity that projects belong to; without a setting, the account's default."""
        if self._entity is None:
            self._entity = self._server.default_entity()
        if self._entity is None:
            raise UndeliveredError(
                FailureKind.REFUSED,
                "The W&B account has no default entity: set WANDB_ENTITY (or entity=) to a user or team.",
            )
        return self._entity

    def forget(self) -> None:
        """Look everything up again: the server said that a project is gone."""
        self._id_by_name.clear()
