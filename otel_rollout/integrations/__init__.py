"""Trace frameworks without an edit to their code; each framework has one package.

``_kit`` holds the code that these packages share.
"""
