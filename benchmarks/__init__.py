"""Measure what tracing costs, with all tracers in one run: ``make bench``."""
