"""Resolve the exporter's settings.

Arguments win over the environment, and the environment wins over wandb's files. The constructor checks all
values. Variables and files are those of ``wandb`` and ``weave``, so a set-up for them works here.
"""

from __future__ import annotations

import configparser
import netrc
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from otel_rollout.exporting.arguments import basic_auth, given, masked, seconds, without_credentials

HOSTED_BASE_URL: Final = "https://api.wandb.ai"
HOSTED_APP_URL: Final = "https://wandb.ai"
HOSTED_TRACE_URL: Final = "https://trace.wandb.ai"
DEFAULT_TIMEOUT: Final = 30.0

_NAME: Final = re.compile(r"[^/\\#?%:]{1,128}")
"""Pattern of project and entity names that W&B accepts."""


@dataclass(frozen=True)
class WeaveSettings:
    """The constructor's arguments, the environment and wandb's files, resolved.

    Attributes:
        api_key: key of the W&B account.
        base_url: address of the W&B server, which knows entities and projects.
        trace_url: address of the Weave trace server, which stores calls.
        entity: user or team; None for the account's default.
        project: project of every span; None for the project that a span names.
        run_id: W&B run, in the calls' own project, that all calls belong to; or None.
        timeout: maximum seconds without a byte from the server in one request.
    """

    api_key: str = field(repr=False)
    base_url: str
    trace_url: str
    entity: str | None
    project: str | None
    run_id: str | None
    timeout: float

    @property
    def app_url(self) -> str:
        """The address of W&B's pages for people."""
        return HOSTED_APP_URL if self.base_url == HOSTED_BASE_URL else self.base_url

    def redact(self, text: str) -> str:
        """Mask the key in a message, both plain and as encoded in requests."""
        return masked(text, [self.api_key, basic_auth("api", self.api_key)])


def resolve(
    *,
    api_key: str | None = None,
    entity: str | None = None,
    project: str | None = None,
    run_id: str | None = None,
    base_url: str | None = None,
    trace_server_url: str | None = None,
    timeout: float | None = None,
) -> WeaveSettings:
    """Combine arguments, environment and wandb's files, without touching the network.

    Raises:
        ValueError: a value is missing or malformed; the message names its argument or environment variable,
            and the remedy.
    """
    base, source = given("base_url", base_url, "WANDB_BASE_URL")
    if base is None:
        base, source = _from_settings_file("base_url") or HOSTED_BASE_URL, "base_url in wandb's settings file"
    base = _checked_url(base, source)
    project, source = given("project", project, "WANDB_PROJECT")
    entity, entity_source = given("entity", entity, "WANDB_ENTITY")
    if project and entity is None and "/" in project:  # a form that weave.init accepts
        entity, project = project.split("/", 1)
        entity_source = source
    if entity is None:
        entity, entity_source = _from_settings_file("entity"), "entity in wandb's settings file"
    return WeaveSettings(
        api_key=_api_key(api_key, base),
        base_url=base,
        trace_url=_trace_url(trace_server_url, base),
        entity=_checked_name(entity, entity_source),
        project=_checked_name(project, source),
        run_id=_checked_name(*given("run_id", run_id, "WANDB_RUN_ID")),
        timeout=seconds("timeout", timeout, default=DEFAULT_TIMEOUT),
    )


def valid_name(name: str) -> str:
    """Make a project name that W&B accepts: replace characters by ``-``, cut to 128."""
    return re.sub(r"[/\\#?%:]", "-", name)[:128]


def _trace_url(argument: str | None, base_url: str) -> str:
    url, source = given("trace_server_url", argument, "WF_TRACE_SERVER_URL")
    if url is not None:
        return _checked_url(url, source)
    public = os.environ.get("WANDB_PUBLIC_BASE_URL", "").rstrip("/") or base_url
    return HOSTED_TRACE_URL if public == HOSTED_BASE_URL else f"{public}/traces"


def _checked_url(url: str, source: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError unless a number
    except ValueError as error:
        raise ValueError(f"{source} is not a valid URL ({error}).") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{source} is {url!r}; expected http[s]://HOST[:PORT].")
    return without_credentials(parts)


def _checked_name(name: str | None, source: str) -> str | None:
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(
            f"{source} is {name!r}; W&B takes 1 to 128 characters, without any of / \\ # ? % : in them."
        )
    return name


def _api_key(argument: str | None, base_url: str) -> str:
    key, source = given("api_key", argument, "WANDB_API_KEY")
    if key is None:
        key, source = _from_netrc(urlsplit(base_url).netloc), "the netrc file"
    if key is None:
        page = f"{HOSTED_APP_URL if base_url == HOSTED_BASE_URL else base_url}/authorize"
        raise ValueError(
            f"No W&B API key for {base_url}: set WANDB_API_KEY (or pass api_key=) to the key of {page}, "
            "or run `wandb login` once, which keeps it in ~/.netrc."
        )
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"{source} does not hold a W&B API key: it has characters no key has.")
    return key


def _from_netrc(host: str) -> str | None:
    """Return the password that ``wandb login`` stored for a host, or None."""
    named = os.environ.get("NETRC")
    for path in (named,) if named else ("~/.netrc", "~/_netrc"):
        try:
            found = netrc.netrc(os.path.expanduser(path)).authenticators(host)
        except (OSError, netrc.NetrcParseError):
            continue
        if found and found[2]:
            return found[2]
    return None


def _from_settings_file(name: str) -> str | None:
    """Read a setting from wandb's settings files of user and working directory."""
    config_dir = os.environ.get("WANDB_CONFIG_DIR") or os.path.expanduser("~/.config/wandb")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read([Path(config_dir) / "settings", Path("wandb") / "settings"], encoding="utf-8")
    except (configparser.Error, OSError, ValueError):
        return None
    return parser.get("default", name, fallback="") or None
