"""Redact secrets before anything is written."""
