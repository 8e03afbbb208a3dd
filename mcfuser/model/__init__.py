"""Analytical models: the time of candidates, without running them."""
