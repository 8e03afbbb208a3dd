"""Triton for an NVIDIA GPU: a schedule's statements as the source of one kernel.

The grid is one-dimensional; a block's tiles are Triton tensors, padded to powers of two and masked
only where padding or a ragged extent needs it.
"""

from mcfuser.codegen.triton.function import Lowering, Source, generate

__all__ = ["Lowering", "Source", "generate"]
