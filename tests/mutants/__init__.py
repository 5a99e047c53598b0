"""Mutation tests: does a test fail when a line of the product is changed?

``make mutants``.
"""
