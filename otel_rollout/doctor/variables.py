"""Select the environment variables that concern tracing, and mask their values."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints
from urllib.parse import unquote, urlsplit

from otel_rollout import settings_reader
from otel_rollout.base.environment import PREFIXES, may_be_credential, without_credentials
from otel_rollout.record.runs.target import is_further_variable
from otel_rollout.settings import CONFIG_VARIABLE, Settings

EXPORTERS: Final = "OTEL_TRACES_EXPORTER"

_SHOWN: Final = frozenset(
    {EXPORTERS, "OTEL_ROLLOUT_INSTRUMENT", "OTEL_ROLLOUT_APPLICATION_PROVIDER", "OTEL_ROLLOUT_REDACT"}
)
"""Variables whose values are shown: names of exporters, of libraries and of choices are no secrets."""
_MIN_MASKED: Final = 3
"""Minimum characters of a value's part that is masked. Shorter parts would mask parts of words at random."""
_CHOICES: Final = [hint for hint in get_type_hints(Settings).values() if get_origin(hint) is Literal]
_COMMON_WORDS: Final = frozenset({"true", "false", *(word for hint in _CHOICES for word in get_args(hint))})
"""Values that are never masked, such as ``all``: they are no secrets, and are parts of other words."""
_LOOPBACK: Final = re.compile(r"localhost|127(\.\d+){3}|::1|0\.0\.0\.0", re.IGNORECASE)
_OTLP_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_ADDRESS_NAMES: Final = re.compile("ADDRESS|ENDPOINT|HOST|URI|URL")
"""Pattern in the names of variables whose values are addresses."""
_ADDRESS: Final = re.compile(r"[\w+.-]+://[^@]+|[^@]+:\d+")
"""Matches an address without user and password; of one without a scheme, only with a port."""


def of_tracing(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that concern tracing."""
    return {name: value for name, value in environ.items() if name.startswith(PREFIXES)}


def of_other_exporters(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of exporters of other packages, which the forwarder gets too."""
    configured, _ = settings_reader.from_environment(environ)
    return {name: value for name, value in environ.items() if is_further_variable(name, configured)}


def names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of tracing variables, except the one this library writes."""
    return sorted(name for name in of_tracing(environ) if name != CONFIG_VARIABLE)


def mask(text: str, environ: Mapping[str, str]) -> str:
    """Replace every value of a variable, and every part of a value, by ``$NAME``.

    Errors of exporters and libraries may quote values. Parts of one or two characters stay, so that the text
    remains readable. An address stays without user, password and query, because a person must check it.
    """
    concerned = of_tracing(environ) | of_other_exporters(environ)
    # First, because it repeats what a person has set in others: the last variable's name is shown.
    ordered = sorted(concerned.items(), key=lambda item: item[0] != CONFIG_VARIABLE)
    for name, value in ordered:
        text = text.replace(f"{name}={value!r}", name)
    shown = {part for name in _SHOWN for part in _parts(environ.get(name, ""))}  # also in CONFIG_VARIABLE
    shown.update(_address(*item) for item in ordered)
    shown |= {str(field.default) for field in dataclasses.fields(Settings)}  # CONFIG_VARIABLE has these, too
    secrets = {
        part: name
        for name, value in ordered
        for part in _parts(value)
        if len(part) >= _MIN_MASKED and part.lower() not in _COMMON_WORDS and part.rstrip("/") not in shown
    }
    if not secrets:
        return text
    # One pass, the longest values first, so that an inserted name is not replaced again.
    pattern = "|".join(re.escape(part) for part in sorted(secrets, key=len, reverse=True))
    return re.sub(pattern, lambda match: f"${secrets[match[0]]}", text)


def _address(name: str, value: str) -> str:
    """Return the address that a variable names, without user, password and query; empty if it names none."""
    address = re.split("[?#]", without_credentials(value.strip()))[0].rstrip("/")
    is_one = _ADDRESS_NAMES.search(name) and not may_be_credential(name, "") and _ADDRESS.fullmatch(address)
    return address if is_one else ""


def on_loopback(environ: Mapping[str, str], options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the variables and exporters' options that hold a loopback address.

    Args:
        environ: the environment.
        options: exporter → keyword arguments of its constructor.
    """
    found = [
        name for name in names(environ) if _is_loopback(environ[name], bool(_ADDRESS_NAMES.search(name)))
    ]
    if "otlp" in options and "endpoint" not in options["otlp"] and not otlp_endpoint(environ):
        found.append("the default endpoint of otlp")
    for exporter, arguments in options.items():
        found += [
            f"{exporter}({name}=…)" for name, value in arguments.items() if _is_loopback(str(value), False)
        ]
    return found


def otlp_endpoint(environ: Mapping[str, str]) -> str:
    """Return the endpoint that the variables name; empty without one."""
    return next(filter(None, (environ.get(name, "").strip() for name in _OTLP_ENDPOINTS)), "")


def is_target_a_file(environ: Mapping[str, str], options: Mapping[str, Any]) -> bool:
    """Return whether an exporter writes to a file; only one machine may do so."""
    values = [str(value) for value in options.values()] or [environ.get("MLFLOW_TRACKING_URI", "")]
    return any(value.startswith(("sqlite:", "file:")) for value in values)


def _is_loopback(value: str, may_lack_scheme: bool) -> bool:
    if "://" not in value:
        value = f"//{value}" if may_lack_scheme else ""
    try:
        host = urlsplit(value).hostname
    except ValueError:
        return False
    return host is not None and _LOOPBACK.fullmatch(host) is not None


def _parts(value: str) -> Iterator[str]:
    """Yield a value and the parts of the value that an error may quote."""
    yield from (value, value.strip(), repr(value)[1:-1])
    for entry in value.split(","):
        for part in (entry.strip(), entry.partition("=")[2].strip()):
            yield part
            yield unquote(part)
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
    yield value.rstrip("/")
    yield parts.netloc.rpartition("@")[0]
    password = parts.password or ""
    yield from (password, unquote(password))
    yield parts.query


def _leaves(value: str) -> Iterator[str]:
    """Yield the strings in a JSON value."""
    try:
        pending: list[Any] = [json.loads(value)]
    except ValueError:
        return
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            pending += node.values()
        elif isinstance(node, list):
            pending += node
        elif isinstance(node, str):
            yield node
            if "://" in node:
                yield from _parts_of_url(node)
