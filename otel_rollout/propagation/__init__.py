"""Context across Ray, threads and processes."""
