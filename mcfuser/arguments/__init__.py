"""What users write: shapes, durations, files that they name."""
