"""Generate a realistic training run as table rows, with faults that can be planted.

A step has groups of siblings, which several workers run, each a few at a time. The next step begins when all
have ended and the trainer has trained. Tools, engine and model fail now and then, at a steady rate.

    python -m tests.analysis.generated_run DIRECTORY --fault tool_error_burst --fault slow_worker
    python -m tests.analysis.generated_run DIRECTORY --six-causes
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of
from otel_rollout.table.store import Store
from tests.analysis.generated_faults import KNOWN, SIX_CAUSES, Faults, planted
from tests.analysis.generated_trajectory import SECOND, Plan, Row, Trajectory

START_NS: Final = 1_767_225_600_000_000_000  # 2026-01-01
_TRAINING_SECONDS: Final = 20.0
_EVERY: Final = 10
"""Training steps between validations."""
_COMMIT_ROWS: Final = 20_000


@dataclass(frozen=True)
class Shape:
    """What a generated run holds.

    Attributes:
        trajectories: number of training trajectories, rounded down to whole groups.
        steps: number of steps.
        siblings: trajectories of a group.
        workers: processes that run trajectories.
        slots: trajectories that a worker runs at a time.
        validations: trajectories of a validation, which is after each tenth step.
        seed: the seed of every random choice.
        faults: names of planted faults.
        run_id: the run's id.
    """

    trajectories: int = 5000
    steps: int = 20
    siblings: int = 8
    workers: int = 8
    slots: int = 8
    validations: int = 16
    seed: int = 7
    faults: tuple[str, ...] = ()
    run_id: str = "run-generated"


def rows(shape: Shape) -> Iterator[Row]:
    """Yield the rows of a run, step after step.

    Raises:
        ValueError: there is no fault of a name.
    """
    run = _Run(shape, planted(shape.faults, shape.steps))
    for step in range(1, shape.steps + 1):
        yield from run.step(step)


class _Run:
    """The state of a run between steps."""

    def __init__(self, shape: Shape, faults: Faults) -> None:
        self._shape, self._faults = shape, faults
        self._now = START_NS
        self._random = random.Random(shape.seed)
        self._workers = [self._worker(number) for number in range(shape.workers)]

    def _worker(self, number: int) -> dict[str, Any]:
        segment = f"{4000 + number}-{self._random.getrandbits(64):016x}.000001"
        return {
            "run_id": self._shape.run_id,
            "project": "generated",
            "experiment": f"grpo-{self._shape.seed}",
            "service": "training",
            "resource": f'{{"rollout.segment.id":"{segment}"}}',
        }

    def step(self, step: int) -> Iterator[Row]:
        """Yield the rows of a step, and of the validation after it."""
        yield from self._rollout(self._plans(step))
        if step % _EVERY == 0:
            yield from self._rollout(self._validation(step))
        self._now += int(_TRAINING_SECONDS * SECOND)

    def _plans(self, step: int) -> list[Plan]:
        shape = self._shape
        groups = max(1, shape.trajectories // (shape.steps * shape.siblings))
        plans = []
        for group in range(groups):
            sample = (step - 1) * groups + group
            is_copied = self._faults.hits("siblings_identical", step, self._random)
            difficulty = self._random.betavariate(1.5, 1.2)
            group_reward = float(self._random.random() < 0.5)
            for number in range(shape.siblings):
                source = number // 4 * 4 if is_copied else number
                worker = (group * shape.siblings + number) % shape.workers
                content = f"{sample}/{source}"
                plan = self._plan(
                    step, sample, number, worker, content, difficulty=difficulty, group_reward=group_reward
                )
                plans.append(plan)
        return plans

    def _validation(self, step: int) -> list[Plan]:
        return [
            self._plan(step, 1_000_000 + row, 0, row % self._shape.workers, f"validation/{step}/{row}", True)
            for row in range(self._shape.validations)
        ]

    def _plan(
        self,
        step: int,
        sample: int,
        number: int,
        worker: int,
        content: str,
        validate: bool = False,
        difficulty: float = 0.5,
        group_reward: float = 0.0,
    ) -> Plan:
        return Plan(
            step=step,
            sample=sample,
            number=number,
            siblings=1 if validate else self._shape.siblings,
            validate=validate,
            worker=worker,
            difficulty=difficulty,
            group_reward=group_reward,
            seed=str(self._shape.seed),
            content=content,
            faults=self._faults,
        )

    def _rollout(self, plans: list[Plan]) -> Iterator[Row]:
        """Run trajectories on the workers' slots, and yield their rows."""
        slots = [[self._now] * self._shape.slots for _ in self._workers]
        end = self._now
        for plan in plans:
            free = slots[plan.worker]
            trajectory = Trajectory(plan, heapq.heappop(free), self._workers[plan.worker])
            heapq.heappush(free, trajectory.end_ns)
            end = max(end, trajectory.end_ns)
            yield from trajectory.rows()
        self._now = end


def written(path: Path, shape: Shape) -> Store:
    """Write a run to a table, a commit for each twenty thousand rows."""
    store = Store(location_of(str(path)))
    collected: list[Row] = []
    number = 0
    for row in rows(shape):
        collected.append(row)
        if len(collected) == _COMMIT_ROWS:
            store.append([batch_of(collected)], f"generator-{shape.run_id}", number)
            collected, number = [], number + 1
    if collected:
        store.append([batch_of(collected)], f"generator-{shape.run_id}", number)
    return store


def main(arguments: list[str]) -> None:
    """Write the table that the command line describes."""
    parser = argparse.ArgumentParser(prog="python -m tests.analysis.generated_run", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--fault", action="append", default=[], choices=KNOWN, help="plant a fault")
    parser.add_argument("--six-causes", action="store_true", help="plant six causes at steps of their own")
    for name in ("trajectories", "steps", "siblings", "workers", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Shape(), name))
    parser.add_argument("--run-id", default=Shape.run_id)
    given = vars(parser.parse_args(arguments))
    directory, faults = given.pop("directory"), given.pop("fault")
    chosen = tuple(SIX_CAUSES) if given.pop("six_causes") else tuple(faults)
    written(directory, Shape(**given, faults=chosen))


if __name__ == "__main__":
    main(sys.argv[1:])
