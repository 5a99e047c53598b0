"""Find the environment variables that are credentials, or give access to a target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_CREDENTIAL_NAME: Final = re.compile("AUTH|CREDENTIAL|HEADERS|KEY|PASSW|SECRET|TOKEN")
_USER_INFORMATION: Final = re.compile(r"://[^/\s]*@")
_ACCESS_NAME: Final = re.compile(f"{_CREDENTIAL_NAME.pattern}|CA_BUNDLE|CERT|INSECURE|NETRC|PROXY|USERNAME")


def may_be_credential(name: str, value: str) -> bool:
    """Return whether a variable or option may hold a credential.

    Its name says so (``API_KEY``), or its value is a URL with a user.
    """
    return _CREDENTIAL_NAME.search(name.upper()) is not None or _USER_INFORMATION.search(value) is not None


def without_credentials(value: str) -> str:
    """Return a URL without user name and password; any other text stays as it is."""
    return _USER_INFORMATION.sub("://", value)


def gives_access(name: str, value: str) -> bool:
    """Return whether a variable is a credential, a certificate, a proxy or the like."""
    if name.startswith("OTEL_ROLLOUT_"):
        return False
    return _ACCESS_NAME.search(name.upper()) is not None or _USER_INFORMATION.search(value) is not None


def access_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give a forwarder access to its targets."""
    return {name: value for name, value in environ.items() if value and gives_access(name, value)}
