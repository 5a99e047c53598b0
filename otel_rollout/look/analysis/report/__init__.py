"""Tell what happened in a run, step by step, and what changed."""
