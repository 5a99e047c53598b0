"""Fork thirty times while four threads record, and print what became of the spans."""

import os
import threading

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op


def write(thread: int, written: list[int], stop: threading.Event) -> None:
    """Record operations until told to stop; note their number."""
    while not stop.is_set():
        rollout_trace_op(name=f"parent.{thread}.{written[thread]}")(lambda: "x" * 2000)()
        written[thread] += 1


def record_in_child(number: int) -> None:
    """Record a trajectory in a child that is forked while its parent writes."""
    child = os.fork()
    if child == 0:
        with rollout_trace_attr(name=f"child.{number}", step=1):
            rollout_trace_op(name=f"child.{number}.0")(lambda: None)()
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    """Record in threads and in children, and wait for delivery."""
    written, stop = [0] * 4, threading.Event()
    threads = [threading.Thread(target=write, args=(number, written, stop)) for number in range(4)]
    with rollout_trace_attr(name="parent", step=1):
        for thread in threads:
            thread.start()
        for number in range(30):
            record_in_child(number)
        stop.set()
        for thread in threads:
            thread.join()
    report = otel_rollout.shutdown(120)
    print(sum(written), report.recorded, report.lost, report.open, report.unfinished, report.dropped)


if __name__ == "__main__":
    main()
