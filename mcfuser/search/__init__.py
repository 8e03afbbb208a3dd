"""Search: which few candidates to measure."""
