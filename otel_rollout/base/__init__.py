"""Provide what every other room may import."""
