"""Run a script where the package's ``.pth`` file is installed: ``with_autoload.py SCRIPT [ARGUMENT …]``."""

from __future__ import annotations

import runpy
import site
import sys
from pathlib import Path

AUTOLOAD = Path(__file__).parents[3] / "autoload"


def main() -> None:
    """Read the ``.pth`` file as Python does when it starts, and run the script."""
    site.addsitedir(str(AUTOLOAD))
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
