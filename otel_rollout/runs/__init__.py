"""Which run a process belongs to, and what that run delivers to."""
