"""Find or create the MLflow experiment of a project, once."""

from __future__ import annotations

from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout_mlflow.target import Experiment, Target


class Experiments:
    """A cache of experiments' ids. Not thread-safe: used under the exporter's lock."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._id_by_name: dict[str, str] = {}
        self._checked_ids: set[str] = set()

    def id_of(self, name: str) -> str:
        """Return the id of the experiment with a name; create a missing experiment.

        Raises:
            UndeliveredError: the experiment is deleted (REFUSED), or MLflow did not answer.
        """
        if name not in self._id_by_name:
            experiment = self._target.experiment_named(name)
            if experiment is None:
                self._target.create_experiment(name)
                # Look the id up: if several processes create the experiment at once, only one gets an id.
                experiment = self._target.experiment_named(name)
            if experiment is None:
                raise UndeliveredError(
                    FailureKind.UNAVAILABLE,
                    f"MLflow does not show the experiment {name!r} after creating it.",
                )
            self._id_by_name[name] = _usable(experiment).id
        return self._id_by_name[name]

    def check(self, experiment_id: str) -> str:
        """Check that the experiment with an id can be written to, and return the id.

        Raises:
            UndeliveredError: the experiment does not exist or is deleted (REFUSED), or MLflow did not answer.
        """
        if experiment_id not in self._checked_ids:
            experiment = self._target.experiment_with_id(experiment_id)
            if experiment is None:
                raise UndeliveredError(
                    FailureKind.REFUSED,
                    f"MLflow has no experiment with id {experiment_id}; set MLFLOW_EXPERIMENT_ID (or "
                    "experiment_id=) to one that exists, or MLFLOW_EXPERIMENT_NAME to have it created.",
                )
            self._checked_ids.add(_usable(experiment).id)
        return experiment_id

    def confirm(self, experiment_id: str) -> None:
        """Check that MLflow shows the spans just written to an experiment.

        MLflow also accepts spans for an experiment in its trash, but shows them to nobody.

        Raises:
            UndeliveredError: the experiment is in the trash (REFUSED) or gone (UNAVAILABLE), or MLflow did
                not answer.
        """
        experiment = self._target.experiment_with_id(experiment_id)
        if experiment is None or experiment.deleted:
            self.forget()
        if experiment is None:
            raise UndeliveredError(
                FailureKind.UNAVAILABLE, f"The MLflow experiment with id {experiment_id} is gone."
            )
        _usable(experiment)

    def forget(self) -> None:
        """Clear the cache, so that every experiment is looked up again."""
        self._id_by_name.clear()
        self._checked_ids.clear()


def _usable(experiment: Experiment) -> Experiment:
    if experiment.deleted:
        raise UndeliveredError(
            FailureKind.REFUSED,
            f"The MLflow experiment {experiment.name!r} (id {experiment.id}) is deleted; restore it with "
            f"`mlflow experiments restore --experiment-id {experiment.id}` or set MLFLOW_EXPERIMENT_NAME.",
        )
    return experiment
