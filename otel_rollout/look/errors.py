"""Define the error that the viewer's commands report."""


class ViewerError(Exception):
    """A trajectory cannot be found, read or written; the message is for a person."""
