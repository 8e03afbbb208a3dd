"""The kinds of device that kernels are made for."""
