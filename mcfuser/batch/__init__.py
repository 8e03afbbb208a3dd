"""Compiles and checks many models, as a CI job does: `mcfuser batch zoo.toml`."""
