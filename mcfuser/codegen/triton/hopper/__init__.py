"""Warp groups of NVIDIA's Hopper with work of their own, written in Gluon."""
