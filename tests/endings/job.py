"""Run a small training job on Ray: ``python -m tests.endings.job ENDING``.

The job ends in the given way. Before that, it prints how many spans have certainly ended.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from typing import Any

import ray

from otel_rollout import publish_run, rollout_trace_attr, rollout_trace_op
from tests.ray_start import start_ray

ACTORS, TRAJECTORIES, OPERATIONS = 2, 5, 20


@rollout_trace_op(name="op")
def operation(number: int) -> str:
    """Simulate a turn, with enough text for the journal to matter."""
    return "word " * (number % 200)


class Worker:
    """Runs trajectories; some methods end its process."""

    def trajectories(self, count: int, operations: int) -> int:
        """Run whole trajectories; return their number of spans."""
        for index in range(count):
            with rollout_trace_attr(sample_index=index, step=1):
                for number in range(operations):
                    operation(number)
        return count * (operations + 1)

    def exit_in_the_middle(self) -> None:
        """End the process inside a trajectory, past any exit handler."""
        with rollout_trace_attr(step=2):
            operation(0)
            os._exit(0)

    def hang_in_a_trajectory(self, path: str) -> None:
        """Record without pause in a trajectory; write the count of ended spans to a file."""
        acknowledged = os.open(path, os.O_WRONLY | os.O_CREAT)
        with rollout_trace_attr(step=2):
            for number in itertools.count():
                operation(number)
                os.pwrite(acknowledged, b"%012d" % (number + 1), 0)

    def publish(self, run: str) -> None:
        """Publish a tracker's run."""
        publish_run(**{"test-file": run, "mlflow": run})

    def pid(self) -> int:
        """Return the id of the worker's process."""
        return os.getpid()


@ray.remote(max_retries=0)
def endless_task(path: str) -> None:
    """Record without pause, until the task is cancelled."""
    Worker().hang_in_a_trajectory(path)


def say(ended: int, unfinished: int = 0) -> None:
    """Print the numbers of ended spans and unfinished trajectories, and the time."""
    # A line of its own, in one piece: Ray prints to the same place from another thread.
    print(f"\nENDED {ended} {unfinished}\n", end="", flush=True)


def ended_according_to(path: str) -> int:
    """Wait until an endless worker has ended 1000 spans; return their number."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with open(path) as file:
                number = int(file.read())
        except (OSError, ValueError):
            number = 0
        if number > 1000:
            return number
        time.sleep(0.05)
    raise TimeoutError(path)


def main(ending: str, path: str) -> None:
    """Run trajectories on two actors, then end in the given way."""
    start_ray(lambda: ray.init("local", num_cpus=ACTORS + 1, include_dashboard=False, log_to_driver=False))
    actor_class = ray.remote(max_restarts=0)(Worker)
    workers = [actor_class.remote() for _ in range(ACTORS)]
    ended = sum(ray.get([w.trajectories.remote(TRAJECTORIES, OPERATIONS) for w in workers]))
    ENDINGS[ending](workers, ended, path)


def kill(workers: list[Any], ended: int, path: str) -> None:
    """Kill every actor with ray.kill, then call ray.shutdown."""
    for worker in workers:
        ray.kill(worker)
    say(ended)
    ray.shutdown()


def shut_down(workers: list[Any], ended: int, path: str) -> None:
    """Call ray.shutdown while the actors live."""
    say(ended)
    ray.shutdown()


def driver_returns(workers: list[Any], ended: int, path: str) -> None:
    """Reach the driver's last line while the workers live."""
    say(ended)


def driver_terminated(workers: list[Any], ended: int, path: str) -> None:
    """Send SIGTERM to the driver."""
    say(ended)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def driver_killed(workers: list[Any], ended: int, path: str) -> None:
    """Send SIGKILL to the driver."""
    say(ended)
    os.kill(os.getpid(), signal.SIGKILL)


def worker_killed(workers: list[Any], ended: int, path: str) -> None:
    """Send SIGKILL to a worker that records without pause, maybe inside a line."""
    pid = ray.get(workers[0].pid.remote())
    workers[0].hang_in_a_trajectory.remote(path)
    ended_according_to(path)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    say(ended + ended_according_to(path), 1)


def worker_exits(workers: list[Any], ended: int, path: str) -> None:
    """Call os._exit in a worker, inside a trajectory."""
    try:
        ray.get(workers[0].exit_in_the_middle.remote())
    except ray.exceptions.RayActorError:
        say(ended + 1, 1)


def task_cancelled(workers: list[Any], ended: int, path: str) -> None:
    """Cancel a task that records without pause with ray.cancel(force=True)."""
    task = endless_task.remote(path)
    ended_according_to(path)
    ray.cancel(task, force=True)
    try:
        ray.get(task)
    except (ray.exceptions.RayError, ray.exceptions.WorkerCrashedError):
        say(ended + ended_according_to(path), 1)


def out_of_scope(workers: list[Any], ended: int, path: str) -> None:
    """Drop the last handle of every actor."""
    workers.clear()
    say(ended)
    time.sleep(1)


def forwarder_killed(workers: list[Any], ended: int, path: str) -> None:
    """Send SIGKILL to the forwarder under load, then end normally."""
    for line in os.popen("ps -e -o pid= -o args="):
        if "otel_rollout.forwarder" in line and os.environ["OTEL_ROLLOUT_SPOOL_DIR"] in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)
    say(ended + ray.get(workers[0].trajectories.remote(TRAJECTORIES, OPERATIONS)))
    ray.shutdown()


ENDINGS = {
    f.__name__: f
    for f in (
        kill,
        shut_down,
        driver_returns,
        driver_terminated,
        driver_killed,
        worker_killed,
        worker_exits,
        task_cancelled,
        out_of_scope,
        forwarder_killed,
    )
}

if __name__ == "__main__":
    main(*sys.argv[1:])
