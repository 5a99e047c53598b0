"""The installed version of this package."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _installed() -> str:
    try:
        return version("otel-rollout")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0+unknown"


VERSION: Final = _installed()
