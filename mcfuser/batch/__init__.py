"""Many models compiled and checked in one go, as a CI job does: `mcfuser batch zoo.toml`."""
