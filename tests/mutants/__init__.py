"""Mutation tests: does a test fail when a place of the product is changed?"""
