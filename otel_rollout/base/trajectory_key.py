"""Make an API key of a W3C ``traceparent`` and a signature, and read it back.

An agent that cannot be edited takes a base URL and a key. The key names its trajectory: ``sk-``, the
traceparent, and a signature over it. Only the holder of the secret can make such a key, so an agent can
neither name another trajectory nor switch off recording by the flags. This module imports nothing of ours.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

_PREFIX: Final = "sk-"
"""Beginning of OpenAI's keys, which some clients check."""
_SIGNATURE_CHARS: Final = 32
"""Hex digits of the signature: 128 bits."""
TRACEPARENT: Final = "00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
"""Pattern of a traceparent, which is the form of a trajectory's id."""
_KEY: Final = re.compile(f"{_PREFIX}({TRACEPARENT})-([0-9a-f]{{{_SIGNATURE_CHARS}}})")


def signed(traceparent: str, secret: str) -> str:
    """Return the key of a traceparent."""
    return f"{_PREFIX}{traceparent}-{_signature(traceparent, secret)}"


def traceparent_of(key: str, secret: str) -> str | None:
    """Return the traceparent of a key; None if the key was not made with the secret."""
    found = _KEY.fullmatch(key)
    if found is None or not secret:
        return None
    traceparent, signature = found.groups()
    return traceparent if hmac.compare_digest(signature, _signature(traceparent, secret)) else None


def _signature(traceparent: str, secret: str) -> str:
    made = hmac.new(secret.encode(errors="surrogatepass"), traceparent.encode(), hashlib.sha256)
    return made.hexdigest()[:_SIGNATURE_CHARS]
