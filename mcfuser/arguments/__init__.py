"""Parses what users write: shapes, durations, paths of files."""
