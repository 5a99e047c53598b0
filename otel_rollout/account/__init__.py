"""Counts what was recorded and delivered."""
