"""Keep the rollout table: one Delta table with a row per span, which any engine reads."""
