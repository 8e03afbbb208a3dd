"""From generated kernels to machine code for an NVIDIA GPU, and to a TVM module."""
