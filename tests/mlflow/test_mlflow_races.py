"""Eight processes that export to one MLflow at once."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from mlflow_support import stored

from tests.sdk_spans import Rollouts, deliver

PROCESSES, TRACES = 8, 4

WRITER = Path(__file__).with_name("racing_writer.py")
LOG_RUN = Path(__file__).parent / "programs" / "log_run.py"


def race(commands: list[list[str]]) -> list[str]:
    """Start processes that are ready at once, and return the last line of each."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *command],
                    env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for command in commands
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=180) for process in processes]
    return [(out.splitlines() or [err[-3000:]])[-1] for out, err in answers]


def writers(uri: str, project: str, number: int) -> list[list[str]]:
    return [[str(WRITER), uri, project, str(TRACES)] for _ in range(number)]


def test_processes_that_meet_a_new_project_share_one_experiment(server_uri, project):
    """Eight processes deliver to a server at once."""
    assert race(writers(server_uri, project, PROCESSES)) == ["delivered"] * PROCESSES

    assert len(stored(server_uri, project)) == PROCESSES * TRACES


def test_eight_processes_make_the_tables_of_a_database(new_store, project):
    """All of eight processes deliver that meet a database without tables, in SQLite and in PostgreSQL."""
    database = new_store()

    assert race(writers(database, project, PROCESSES)) == ["delivered"] * PROCESSES

    assert len(stored(database, project)) == PROCESSES * TRACES


def test_eight_processes_make_one_database(database, project, exporter_for):
    """All of eight processes that create one SQLite file deliver.

    One more delivers later.

    Beside them MLflow's own client makes the file at the same time, as a trainer that logs its run does.
    """
    trainer = [str(LOG_RUN), database, project]

    assert race([*writers(database, project, PROCESSES), trainer]) == ["delivered"] * (PROCESSES + 1)

    assert len(stored(database, project)) == PROCESSES * TRACES
    later = Rollouts(project)
    with later.span("Agent.run", "AGENT"):
        pass
    deliver(exporter_for(database), later.ended())
    directory = Path(database.removeprefix("sqlite:///")).parent
    assert [path.name for path in directory.glob("*mlflow*")] == ["mlflow.db"]
