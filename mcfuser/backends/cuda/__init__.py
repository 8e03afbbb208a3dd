"""Kernels for NVIDIA GPUs: Triton and Gluon."""
