"""Record, do something else, and end: ``record_then.py EXPORTERS [OPTIONS]``.

EXPORTERS is what ``configure()`` takes, as JSON. ``--then`` names a function below, which the program calls
before it ends. ``--log`` sets up the application's logging first.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import otel_rollout
from otel_rollout.settings import ExporterOptions

DEADLINE = 60


def nothing(exporters: ExporterOptions) -> None:
    """Do nothing."""


def shut_down(exporters: ExporterOptions) -> None:
    """Call shutdown()."""
    otel_rollout.shutdown()


def shut_down_until_interrupted(exporters: ExporterOptions) -> None:
    """Call shutdown(), and print ``interrupted`` on Ctrl-C."""
    try:
        otel_rollout.shutdown()
    except KeyboardInterrupt:
        print("interrupted")


def shut_down_in_display(exporters: ExporterOptions) -> None:
    """Call shutdown() inside a display of rich's."""
    import rich.console

    with rich.console.Console().status("busy"):
        otel_rollout.shutdown()


def configure_again(exporters: ExporterOptions) -> None:
    """Begin another run."""
    otel_rollout.configure(exporters, project_name="beta")


def record_another_run(exporters: ExporterOptions) -> None:
    """Record a trajectory in another run."""
    configure_again(exporters)
    with otel_rollout.rollout_trace_attr():
        pass


def start_children(exporters: ExporterOptions) -> None:
    """Wait for a forked child, and for another process that imports the package."""
    if os.fork() == 0:
        sys.exit()
    os.wait()
    subprocess.run([sys.executable, "-c", "import otel_rollout"])


def wait_until_retried(exporters: ExporterOptions) -> None:
    """Wait until the forwarder has recorded a failure of an exporter."""
    end = time.monotonic() + DEADLINE
    while not any(count.retried for count in otel_rollout.status().exporters.values()):
        time.sleep(0.01)
        assert time.monotonic() < end


def mend_target(exporters: ExporterOptions) -> None:
    """Wait until test-faulty fails, remove the cause, and wait for delivery."""
    wait_until_retried(exporters)
    Path(exporters["test-faulty"]["path"] + ".fault").unlink()
    end = time.monotonic() + DEADLINE
    while otel_rollout.status().exporters["test-faulty"].pending:
        time.sleep(0.01)
        assert time.monotonic() < end


def run_on(exporters: ExporterOptions) -> None:
    """Print ``READY``, and run until a signal ends the process."""
    print("READY")
    while True:
        time.sleep(0.1)


ACTIONS: dict[str, Callable[[ExporterOptions], None]] = {
    action.__name__: action
    for action in (
        nothing,
        shut_down,
        shut_down_until_interrupted,
        shut_down_in_display,
        configure_again,
        record_another_run,
        start_children,
        wait_until_retried,
        mend_target,
        run_on,
    )
}
"""Name → what the program does after recording."""


def main() -> None:
    """Record as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("exporters", type=json.loads)
    parser.add_argument("--trajectories", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=30)
    parser.add_argument("--linger", type=float, default=5)
    parser.add_argument("--log", choices=["info", "quiet"])
    parser.add_argument("--then", choices=ACTIONS, default="nothing")
    options = parser.parse_args()
    if options.log == "info":
        logging.basicConfig(level="INFO", format="LOG %(message)s")
    elif options.log == "quiet":
        logging.getLogger("otel_rollout").setLevel("ERROR")
    otel_rollout.configure(
        options.exporters,
        project_name="alpha",
        forwarder_linger=options.linger,
        shutdown_timeout=options.timeout,
    )
    for sample in range(options.trajectories):
        with otel_rollout.rollout_trace_attr(step=1, sample_index=sample):
            pass
    ACTIONS[options.then](options.exporters)
    print("the program is over", flush=True)


if __name__ == "__main__":
    main()
