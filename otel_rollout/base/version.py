"""The installed version, for scopes, user agents and ``otel-rollout --version``."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _installed() -> str:
    try:
        return version("otel-rollout")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"


VERSION: Final = _installed()
