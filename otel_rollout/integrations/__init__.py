"""Trace frameworks without an edit to their code; each framework has one package.

``kit`` holds the code that these packages share.
"""
