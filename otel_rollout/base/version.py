"""The installed version of this package, for scopes, user agents and ``otel-rollout --version``."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _installed() -> str:
    try:
        return version("otel-rollout")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0+unknown"


VERSION: Final = _installed()
