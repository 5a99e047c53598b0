"""Hold a trajectory open, with a redaction that only this program's directory has."""

import runpy
from pathlib import Path

import otel_rollout


def hide_digits(line: str) -> str:
    """Replace a text of the test."""
    return line.replace("4711", "####")


if __name__ == "__main__":
    otel_rollout.configure(redact="hide_digits:hide_digits")
    runpy.run_path(str(Path(__file__).with_name("hold_trajectories.py")), run_name="__main__")
