"""Count recorded and delivered spans."""
