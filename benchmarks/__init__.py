"""What tracing costs, measured side by side in one run. ``make bench``."""
