"""From ONNX to chains, and from kernels back to one compiled module."""
