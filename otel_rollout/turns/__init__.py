"""Complete model calls: what a turn continues, what it breaks, and its text."""
