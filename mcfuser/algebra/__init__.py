"""Dependences between reductions over one axis, and what repairs them."""
