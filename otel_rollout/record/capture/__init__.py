"""Run inside user code without raising, blocking or changing results."""
