"""Find or create the MLflow experiment of a project, once."""

from __future__ import annotations

from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout_mlflow.target import Experiment, Target


class Experiments:
    """Ids of experiments. Not thread-safe: used under the exporter's lock."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._id_by_name: dict[str, str] = {}
        self._checked_ids: set[str] = set()

    def id_of(self, name: str) -> str:
        """Return the id of the experiment with a name, created if there is none.

        Raises:
            UndeliveredError: the experiment is deleted (REFUSED), or MLflow did not answer.
        """
        if name not in self._id_by_name:
            experiment = self._target.experiment_named(name)
            if experiment is None:
                self._target.create_experiment(name)
                # Not the id from the answer: of processes that create it at once, all but one get an error.
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

        MLflow takes spans for an experiment in its trash too, and shows them to nobody.

        Raises:
            UndeliveredError: the experiment is deleted (REFUSED) or gone (UNAVAILABLE), or MLflow did not
                answer.
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
        """Look up every experiment again: MLflow said that one is gone."""
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
