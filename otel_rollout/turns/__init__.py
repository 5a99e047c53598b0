"""Rewrite recorded spans for exporters: shared prefixes, prefix breaks, decoded text, foreign spans."""
