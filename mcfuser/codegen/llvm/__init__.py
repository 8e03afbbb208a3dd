"""From a TVM module with generated kernels to a shared library for a CPU."""
