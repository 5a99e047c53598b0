"""Tell what the wall time of a step went into."""
