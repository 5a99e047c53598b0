"""Explain a training run from the views: report, groups, time and health."""
