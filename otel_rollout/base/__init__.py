"""Provide the code that every other package may import."""
