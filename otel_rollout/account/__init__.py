"""Count what was recorded and delivered."""
