"""Kill itself while it writes scores to a database: ``killed_while_scoring.py URI PROJECT TRAJECTORIES``."""

import os
import signal
import sys
from itertools import count
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from otel_rollout_mlflow import MlflowSpanExporter
from tests.identity_scores import given, resolve
from tests.sdk_spans import ROLLOUT_RUN, Rollouts

NAMES = tuple(f"score {number}" for number in range(15))
LAST = 230
"""Number of the score at whose row the process dies: in the second transaction."""


def scores(rollouts: Rollouts, trajectories: int) -> list[Any]:
    """Return a score of each trajectory and name."""
    return [
        given(rollouts, number / 10, 2_000_000_000 * 10**9, sample, 0, gen_ai__evaluation__name=name)
        for sample in range(trajectories)
        for number, name in enumerate(NAMES)
    ]


def main(uri: str, project: str, trajectories: int) -> None:
    """Write the scores, and die before the last one."""
    exporter = MlflowSpanExporter(tracking_uri=uri)
    rows = count(1)

    def die(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO assessments") and next(rows) == LAST:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", die)
    resolve(exporter, *scores(Rollouts(project, {"rollout.run.id": ROLLOUT_RUN}), trajectories))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
