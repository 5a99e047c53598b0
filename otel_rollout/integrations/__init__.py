"""Trace frameworks without an edit to their code: one package per framework, and what they share."""
