"""Recording: an OTel ``TracerProvider`` whose ended spans are lines in a file, at once and durably."""
