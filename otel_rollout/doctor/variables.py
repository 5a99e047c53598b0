"""The environment variables that matter, by name. Their values are used and never shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from otel_rollout.base.environment import PREFIXES
from otel_rollout.settings import CONFIG_VARIABLE

EXPORTERS: Final = "OTEL_TRACES_EXPORTER"

_SHOWN: Final = frozenset({EXPORTERS})
"""Names of exporters are what is talked about."""
_SHORTEST: Final = 3
_COMMON_WORDS: Final = frozenset({"true", "false", "none"})
_LOOPBACK: Final = re.compile(r"localhost|127(\.\d+){3}|::1|0\.0\.0\.0", re.IGNORECASE)
_NAMES_A_PLACE: Final = re.compile("ADDRESS|ENDPOINT|HOST|URI|URL")


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment concerns tracing."""
    return {name: value for name, value in environ.items() if name.startswith(PREFIXES)}


def names(environ: Mapping[str, str]) -> list[str]:
    """Names of those that people set; :data:`CONFIG_VARIABLE` is written by ourselves."""
    return sorted(name for name in relevant(environ) if name != CONFIG_VARIABLE)


def hide(text: str, environ: Mapping[str, str]) -> str:
    """Replace every value of a variable, and every part of one, by ``$NAME``.

    For words that are not ours: exporters and libraries quote what they were given. Parts of one or two
    characters stay, or nothing could be read.
    """
    for name, value in relevant(environ).items():
        text = text.replace(f"{name}={value!r}", name)
    shown = {part for name in _SHOWN for part in _parts(environ.get(name, ""))}  # CONFIG_VARIABLE has it too
    secrets = {
        part: name
        for name, value in relevant(environ).items()
        for part in _parts(value)
        if len(part) >= _SHORTEST and part.lower() not in _COMMON_WORDS and part not in shown
    }
    if not secrets:
        return text
    # All at once and the longest first: what has been put in must not be replaced again.
    pattern = "|".join(re.escape(part) for part in sorted(secrets, key=len, reverse=True))
    return re.sub(pattern, lambda match: f"${secrets[match[0]]}", text)


def loopback(environ: Mapping[str, str], options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What points at the machine it is used on: names of variables, and of exporters' options.

    Args:
        environ: the environment.
        options: exporter name → keyword arguments of its constructor.
    """
    found = [
        name
        for name, value in sorted(relevant(environ).items())
        if name != CONFIG_VARIABLE and _is_loopback(value, bool(_NAMES_A_PLACE.search(name)))
    ]
    if "otlp" in options and not _otlp_endpoint(environ, options["otlp"]):
        found.append("the default endpoint of otlp")
    for exporter, arguments in options.items():
        found += [f"{exporter}({name}=…)" for name, v in arguments.items() if _is_loopback(str(v), False)]
    return found


def _otlp_endpoint(environ: Mapping[str, str], arguments: Mapping[str, Any]) -> bool:
    """Whether anybody has said where OTLP goes."""
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return "endpoint" in arguments or any(environ.get(name, "").strip() for name in names)


def in_files(environ: Mapping[str, str], options: Mapping[str, Any]) -> bool:
    """Whether an exporter writes to a file, which is for one machine to do."""
    values = [str(value) for value in options.values()] or [environ.get("MLFLOW_TRACKING_URI", "")]
    return any(value.startswith(("sqlite:", "file:")) for value in values)


def _is_loopback(value: str, may_lack_scheme: bool) -> bool:
    if "://" not in value:
        if not may_lack_scheme:
            return False
        value = "//" + value
    try:
        host = urlsplit(value).hostname
    except ValueError:
        return False
    return host is not None and _LOOPBACK.fullmatch(host) is not None


def _parts(value: str) -> Iterator[str]:
    """A value and all that could be quoted of it: its escaped form, list entries, a URL's credentials."""
    yield value
    yield value.strip()
    yield repr(value)[1:-1]
    for entry in value.split(","):
        yield entry.strip()
        yield unquote(entry.strip())
        yield entry.partition("=")[2].strip()
        yield unquote(entry.partition("=")[2].strip())
    yield from value.split()
    if "://" in value:
        yield from _parts_of_url(value)
    if value.lstrip().startswith("{"):
        yield from _leaves(value)


def _parts_of_url(value: str) -> Iterator[str]:
    try:
        parts = urlsplit(value)
    except ValueError:
        return
    user_information, _, place = parts.netloc.rpartition("@")
    yield value.rstrip("/")
    yield user_information
    if parts.password:
        yield parts.password
        yield unquote(parts.password)
    yield parts.query
    if user_information:
        yield place


def _leaves(value: str) -> Iterator[str]:
    try:
        pending: list[Any] = [json.loads(value)]
    except ValueError:
        return
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, list):
            pending += one
        elif isinstance(one, str):
            yield one
            if "://" in one:
                yield from _parts_of_url(one)
