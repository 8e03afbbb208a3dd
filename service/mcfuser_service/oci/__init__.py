"""Kept kernels as an artefact in an OCI registry."""
