"""mcfuser over HTTP."""
