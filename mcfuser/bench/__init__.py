"""Benchmarks of mcfuser's own estimates against what is compiled and measured."""
