"""Spans of this process: provider, span, identity, sampling, redaction."""
