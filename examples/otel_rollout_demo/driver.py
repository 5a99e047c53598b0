"""Play the trainer: start actors on a local Ray, have them sample trajectories.

The actors are an inference server, a tool sandbox and several agent-loop workers. The run ends as training
jobs do, with ``ray.kill`` on every actor, so no code of an actor runs at the actor's end.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_rollout_demo.dataset import Row, batch, load
from otel_rollout_demo.server import ScriptedServer, TransformersServer
from otel_rollout_demo.tools import CALCULATOR_SCHEMA, CalculatorTool, RemoteTool
from otel_rollout_demo.worker import AgentLoopWorker, Rollout, Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_RAY_STARTS = 3
"""Attempts to start Ray."""
_TIMED_OUT = "timed out during startup"
"""Part of Ray's error when its node did not start in time."""


@dataclass(frozen=True)
class Plan:
    """Size of a run, and the model."""

    steps: int = 3
    samples: int = 4  # prompts per step
    n: int = 4  # trajectories per prompt
    workers: int = 2
    seed: int = 0
    model: str | None = None  # a causal LM for transformers; None: the scripted model


@dataclass(frozen=True)
class Batch:
    """Trajectories of one training step, or of the validation after the last step."""

    step: int
    validate: bool
    rollouts: list[Rollout]


def schedule(plan: Plan) -> Iterator[Batch]:
    """Yield the batches of a run: training steps, then a greedy validation with n = 1."""
    train = load("train")
    random.Random(plan.seed).shuffle(train)  # noqa: S311 - an order of samples, not a secret
    for step in range(1, plan.steps + 1):
        yield _batch(batch(train, step, plan.samples), step, plan.n, temperature=1.0)
    yield _batch(
        load("validation")[: max(1, 2 * plan.samples)], plan.steps, 1, temperature=0.0, validate=True
    )


def _batch(rows: list[Row], step: int, n: int, *, temperature: float, validate: bool = False) -> Batch:
    sampling_params = {"temperature": temperature, "top_p": 1.0, "max_tokens": 256}
    # Step s samples with the weights of s - 1 updates; validation comes after the last update.
    version = step if validate else step - 1
    rollouts = [Rollout(row, step, i, validate, version, sampling_params) for row in rows for i in range(n)]
    return Batch(step, validate, rollouts)


class RolloutError(Exception):
    """An actor or a trajectory has failed; the message is the last line of Ray's."""


class Cluster:
    """A local Ray with the actors of one run, as a context manager.

    Leaving the context kills the actors and stops Ray.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._workers: list[Any] = []
        self._server: Any = None
        self._sandbox: Any = None

    def __enter__(self) -> Cluster:
        """Start Ray and all actors, and wait some seconds until they are ready.

        Raises:
            RolloutError: an actor could not be started, for example because the model could not be loaded.
        """
        # Ray reads these variables when it is imported. The demo reports no usage, and does not copy the
        # working directory to its workers under `uv run`.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import ray

        try:
            self._start(ray)
        except ray.exceptions.RayError as error:
            self._stop(ray)
            raise RolloutError(_last_line(error)) from error
        except BaseException:  # Ctrl-C for example: Ray must not go on running
            self._stop(ray)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kill every actor and stop Ray."""
        import ray

        self._stop(ray)

    def update_weights(self, version: int) -> None:
        """Have the server sample with the weights of ``version`` from now on.

        Raises:
            RolloutError: the server is gone.
        """
        import ray

        try:
            ray.get(self._server.update_weights.remote(version))
        except ray.exceptions.RayError as error:
            raise RolloutError(_last_line(error)) from error

    def rollout(self, rollouts: list[Rollout]) -> Iterator[Trajectory | RolloutError]:
        """Sample trajectories, and yield each as it ends, or its error.

        The workers get trajectories in turn.
        """
        import ray

        pending = {
            self._workers[place % len(self._workers)].run_trajectory.remote(rollout)
            for place, rollout in enumerate(rollouts)
        }
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            pending.remove(done)
            try:
                yield ray.get(done)
            except ray.exceptions.RayError as error:
                yield RolloutError(_last_line(error))

    def _start(self, ray: Any) -> None:
        plan = self._plan
        _start_ray(ray, cpus=plan.workers + 2)  # logical CPUs, one per actor, on any machine
        if plan.model is None:
            self._server = ray.remote(ScriptedServer).options(num_cpus=1).remote(plan.seed)
            name = "scripted"
        else:
            self._server = ray.remote(TransformersServer).options(num_cpus=1).remote(plan.model, plan.seed)
            name = plan.model
        worker = ray.remote(AgentLoopWorker).options(num_cpus=1)
        self._sandbox = ray.remote(CalculatorTool).options(num_cpus=1).remote()
        calculator = RemoteTool(self._sandbox, "calculator", CALCULATOR_SCHEMA)
        self._workers = [
            worker.remote(self._server, name, plan.model, calculator) for _ in range(plan.workers)
        ]
        ray.get([actor.ready.remote() for actor in (self._server, *self._workers)])

    def _stop(self, ray: Any) -> None:
        for actor in (self._server, self._sandbox, *self._workers):
            if actor is not None:
                ray.kill(actor)
        ray.shutdown()


def _start_ray(ray: Any, cpus: int) -> None:
    """Start a local Ray, again if Ray's limit of 30 s was too short for the machine."""
    for attempt in range(1, _RAY_STARTS + 1):
        try:
            ray.init(
                address="local",  # never a running cluster
                num_cpus=cpus,
                object_store_memory=100 * 1024**2,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            if attempt == _RAY_STARTS or _TIMED_OUT not in str(error):
                raise
            print("Ray's node did not start within Ray's limit of 30 s. Starting it again …", file=sys.stderr)
        else:
            return


def _last_line(error: Exception) -> str:
    """Return the last line of an error of Ray's, which follows a remote traceback."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
