"""Token ids as people read them: what a turn adds to those before it, and its text."""
