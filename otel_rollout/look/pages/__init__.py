"""Provide the HTML templates, the style and the charts of every page."""
