"""Name the problems of a table, each in one sentence for a person."""

from __future__ import annotations

import re
from typing import Final

from otel_rollout.base.errors import ReportedError
from otel_rollout.table.location import Location

_ESCAPES: Final = re.compile("\x1b\\[[0-9;]*m")
_BACKTRACE: Final = re.compile(r"\n +0: .*\Z", re.DOTALL)
_ANSWER: Final = re.compile(r"<Message>(?P<message>[^<]+)</Message>")
"""Answer of an S3 server to a request that it refuses."""
_MAX_WORDS: Final = 300
"""Maximum characters of deltalake's own words in a message."""
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_NO_ACCESS: Final = (
    "Permission denied", "PermissionDenied", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch",
    "403 Forbidden", "401 Unauthorized", "ExpiredToken", "InvalidToken", "Read-only file system",
    "AuthenticationFailed",
)  # fmt: skip
_NO_CREDENTIALS: Final = ("169.254.169.254", "error getting credentials", "no credentials")
"""Signs that deltalake has asked the cloud's machine for credentials, because no variable has any."""
_DAMAGED: Final = (
    "Json error", "No table metadata or protocol", "Expected ordered contiguous", "log segment",
    "Missing commit", "missing version", "Invalid table version", "Invalid checkpoint", "Invalid log",
)  # fmt: skip
_VANISHED: Final = ("File not found", "Path does not exist", "kind: NotFound", "No such file or directory")
"""Signs that a file was removed between its listing and its reading: the table changes just now."""
_GAP: Final = "found gap"
"""Sign that a listing of the log lacks an entry: one that was written meanwhile, or one that is gone."""
NO_TABLE: Final = (
    "There is no table at {}. A run with OTEL_TRACES_EXPORTER=delta writes one, ten seconds after it begins."
)
"""Message about a place without a table."""
_TEMPORARY_CLASSES: Final = ("CommitFailedError", "PanicException")


class TableError(ReportedError):
    """A table cannot be opened, read or written.

    Attributes:
        is_temporary (bool): whether another attempt may succeed without a person.
    """

    def __init__(self, message: str, *, is_temporary: bool = False) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary


class NoTableError(TableError):
    """There is no table yet."""


class IncompleteListingError(TableError):
    """A listing of the table's log lacks an entry between two others."""


def described(error: BaseException, location: Location) -> TableError:
    """Turn an error of deltalake into one sentence.

    Args:
        error: raised by deltalake.
        location: the table's address.
    """
    words = _BACKTRACE.sub("", _ESCAPES.sub("", str(error)))  # without colours and stack trace
    if isinstance(error, MemoryError):
        return TableError(f"There is not enough memory for the table at {location.uri}.", is_temporary=True)
    if _has(words, _NO_BUCKET):
        return TableError(f"The bucket {location.bucket} does not exist: check the address {location.uri}.")
    if _has(words, _NO_ACCESS):
        return TableError(f"No permission for the table at {location.uri} ({_reason(words)}).")
    if _has(words, _NO_CREDENTIALS):
        return TableError(
            f"There are no credentials for {location.uri}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or the variables of another method."
        )
    name = type(error).__name__
    if name == "DeltaProtocolError" or "reader feature" in words.lower() or "writer feature" in words.lower():
        return TableError(
            f"The table at {location.uri} needs features of Delta that deltalake lacks ({_reason(words)})."
        )
    if name == "TableNotFoundError":
        return NoTableError(NO_TABLE.format(location.with_origin))
    if _GAP in words:
        return IncompleteListingError(
            f"The log of the table at {location.uri} lacks an entry ({_reason(words)}).", is_temporary=True
        )
    if _has(words, _DAMAGED):
        return TableError(
            f"The table at {location.uri} is damaged: its log, in _delta_log, cannot be read "
            f"({_reason(words)}). Restore the log, or move the table away."
        )
    return TableError(
        f"The table at {location.uri} cannot be read or written: {_reason(words)}.",
        is_temporary=name in _TEMPORARY_CLASSES
        or isinstance(error, OSError)
        or "commit" in words.lower()
        or _has(words, _VANISHED),
    )


def _has(words: str, signs: tuple[str, ...]) -> bool:
    return any(sign in words for sign in signs)


def _reason(words: str) -> str:
    """Return the last and most specific part of a message, in one line."""
    if answer := _ANSWER.search(words):
        words = answer["message"]
    parts = [" ".join(part.split()) for part in words.replace("Error: ", "\n↳").split("↳")]
    parts = [part for part in parts if part]
    reason = parts[-1] if parts else "no reason given"
    return reason[:_MAX_WORDS].rstrip(".")
