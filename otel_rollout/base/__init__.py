"""Foundations that every other room may import."""
