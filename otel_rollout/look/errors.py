"""Define the error that the viewer's commands report."""

from pathlib import Path

from otel_rollout.base.errors import ReportedError


class ViewerError(ReportedError):
    """A trajectory cannot be found, read or written; the message is for a person."""


def unreadable(path: Path, error: OSError) -> ViewerError:
    """Return the error about a file or folder that cannot be read, with advice if permission is missing."""
    advice = " Read it as its owner, or give yourself permission." if type(error) is PermissionError else ""
    return ViewerError(f"{path} cannot be read: {error.strerror or error}.{advice}")
