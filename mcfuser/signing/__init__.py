"""Manifests of compiled modules: in-toto statements in DSSE envelopes, signed with Ed25519."""
