"""Trace frameworks without an edit to their code, in one package per framework.

``_kit`` is what the packages share.
"""
