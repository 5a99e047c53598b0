"""Describe the machine on which figures were measured."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("otel-rollout", "opentelemetry-sdk", "mlflow", "orjson", "ray")


def machine() -> dict[str, Any]:
    """Return the machine's processor, operating system and package versions."""
    processors = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in processors.splitlines() if "model name" in line]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).date().isoformat(),
    }
