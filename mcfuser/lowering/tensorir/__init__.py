"""What TensorIR makes of a schedule on a CPU."""
