"""Resolve the address of a table: a directory of this machine or of an object store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

DEFAULT_URI: Final = "./rollouts"
_S3: Final = ("s3", "s3a")
_REMOTE: Final = (*_S3, "gs", "az", "azure", "abfs", "abfss", "adl")
"""Schemes of object stores that deltalake can write to."""
_MISSPELT: Final = re.compile(rf"({'|'.join(_REMOTE)})(:/|//)")
"""Beginning of an address that names a directory only because a character is missing: ``s3//bucket``."""
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")
"""Part of a path that deltalake writes as it is and reads as another character."""
_DEFAULT_REGION: Final = "us-east-1"
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_PATIENCE: Final = {"max_retries": "3", "retry_timeout": "30s", "timeout": "60s", "connect_timeout": "5s"}
"""Limits of one request, so that an outage is reported soon; the forwarder tries again."""


@dataclass(frozen=True)
class Location:
    """Where a table is.

    Attributes:
        uri: address for deltalake: an absolute path, or a URI of an object store.
        path: the directory, if the table is on this machine.
        named_by: the variable that holds the address, for messages; empty if the address came from elsewhere.
    """

    uri: str
    path: Path | None
    named_by: str = ""

    @property
    def with_origin(self) -> str:
        """The address, and the variable that holds it."""
        return f"{self.uri} ({self.named_by})" if self.named_by else self.uri

    @property
    def bucket(self) -> str:
        """The bucket or container of an object store; empty for a directory."""
        return "" if self.path is not None else urlsplit(self.uri).netloc

    def storage_options(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return deltalake's options. deltalake itself reads credentials from the environment.

        Args:
            environ: environment variables.
        """
        if self.path is not None:
            return {}
        options = dict(_PATIENCE)
        if urlsplit(self.uri).scheme in _S3:
            endpoint = next((environ[name] for name in _ENDPOINTS if environ.get(name)), "")
            if endpoint:
                options["AWS_ENDPOINT_URL"] = endpoint
            if endpoint.startswith("http://"):
                options["AWS_ALLOW_HTTP"] = "true"
            if not any(environ.get(name) for name in _REGIONS):  # else deltalake asks the machine
                options["AWS_REGION"] = _DEFAULT_REGION
        return options


def location_of(uri: str, source: str = "the table's address") -> Location:
    """Resolve an address: a path, ``file://…``, or ``s3://bucket/path`` and its like.

    Args:
        uri: the address.
        source: origin of the address, for the error.

    Raises:
        ValueError: the address has an unknown scheme or no path, or a path that deltalake cannot read again.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator and not _MISSPELT.match(uri):
        return _local(Path(os.path.expanduser(uri)), source)
    parts = urlsplit(uri)
    if scheme == "file" and not parts.netloc and parts.path:
        return _local(Path(unquote(parts.path)), source)
    if (
        scheme not in _REMOTE
        or not parts.netloc
        or not parts.path.strip("/")
        or ("@" in parts.netloc and scheme in _S3)
    ):
        raise ValueError(
            f"{source} is {uri!r}; expected a directory, or s3://BUCKET/PATH, gs://BUCKET/PATH or "
            "az://CONTAINER/PATH."
        )
    return Location(uri.rstrip("/"), None)


def _local(path: Path, source: str) -> Location:
    absolute = Path(os.path.abspath(path))
    if escape := _ESCAPE.search(str(absolute)):
        raise ValueError(
            f"{source} is {str(absolute)!r}; deltalake cannot read a directory with {escape[0]!r} in its "
            "path: name another one."
        )
    return Location(str(absolute), absolute)
