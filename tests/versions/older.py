"""An older version of otel-rollout, as processes find it: by their PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMIT = "921b4e4b2c4703cfc083e38b0fa01cceadac5b10"
"""The last version without batches of scores and without a receiver. Once there are releases, the oldest
release that the support policy names takes its place."""
THIS = os.pathsep.join(map(str, (ROOT, ROOT / "exporters")))
"""PYTHONPATH of the version under test, and of the programs of tests."""


def unpack(directory: Path) -> str:
    """Write the older version below ``directory``; return its PYTHONPATH, with the programs of tests."""
    if subprocess.run(
        ["git", "cat-file", "-e", COMMIT], cwd=ROOT, capture_output=True, check=False
    ).returncode:
        subprocess.run(["git", "fetch", "--quiet", "--unshallow"], cwd=ROOT, check=False)
    archive = subprocess.run(
        ["git", "archive", COMMIT, "otel_rollout", "exporters"], cwd=ROOT, capture_output=True, check=False
    )
    assert archive.returncode == 0, (
        f"git fetch --unshallow: this clone lacks an older commit. {archive.stderr!r}"
    )
    subprocess.run(["tar", "--extract", "--directory", directory], input=archive.stdout, check=True)
    return os.pathsep.join(map(str, (directory, directory / "exporters", ROOT)))
