"""Record the spans of this process: provider, span, sampling, redaction, writer."""
