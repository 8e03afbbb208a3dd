"""Tuning a chain: the key under which a kernel is kept, the tuner, the covers of a chain."""
