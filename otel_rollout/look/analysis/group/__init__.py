"""Merge the siblings of a group into a tree."""
