"""Kernels for the CPU at hand: TensorIR through TVM."""
