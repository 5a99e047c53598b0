"""Get the programs in Go that tests run: from the PATH, or built with Go, once for all checkouts.

    python -m tests.go_tools kustomize actionlint

Prints a path for each name. A build takes up to minutes, once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.dev_cache import cached

PACKAGES: Final = {
    "actionlint": "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12",
    "kustomize": "sigs.k8s.io/kustomize/kustomize/v5@v5.8.1",
    "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
}
"""Name of a program → its package, with a version."""


class NoToolError(Exception):
    """A program is not available; the message says why and what to do."""


def get(name: str) -> Path:
    """Return the path of a program.

    Raises:
        NoToolError: it is not there and cannot be built.
    """
    if installed := shutil.which(name):
        return Path(installed)
    package = PACKAGES[name]
    directory = f"{name}-{package.rpartition('@v')[2]}"
    return cached(directory, lambda fresh: _build(package, fresh)) / name


def _build(package: str, directory: Path) -> None:
    """Build a package's program into a new folder."""
    if shutil.which("go") is None:
        raise NoToolError(f"There is no Go to build {package} with: install Go.")
    print(f"Building {package} with Go. This takes minutes, once.", file=sys.stderr, flush=True)
    environment = {**os.environ, "GOBIN": str(directory)}
    ran = subprocess.run(
        ["go", "install", package], env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise NoToolError(f"go install {package} failed:\n{ran.stderr[-3000:]}")


if __name__ == "__main__":
    try:
        for wanted in sys.argv[1:]:
            print(get(wanted))
    except NoToolError as error:
        sys.exit(str(error))
