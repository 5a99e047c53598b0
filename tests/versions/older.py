"""An older version of otel-rollout, as processes find it: by their PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMIT = "f85d025b8f8808c64429bf9c7229a4b03eed27f4"
"""The first version with three storeys: what Ray sends by name had other names before. Once there are
releases, the oldest release that the support policy names takes its place."""
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
