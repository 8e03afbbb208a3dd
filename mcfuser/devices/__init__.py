"""Devices that kernels are tuned for: a file of figures for each GPU, and the CPU at hand."""
