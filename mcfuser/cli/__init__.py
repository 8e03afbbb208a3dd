"""The command `mcfuser`."""
