"""Checks and times kernels: test cases, the process that measures, and comparisons."""
