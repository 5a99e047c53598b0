"""Find the run that a process belongs to, and the target of that run."""
