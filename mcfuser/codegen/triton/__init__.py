"""Triton for an NVIDIA GPU: a schedule's statements as the source of one kernel, or of two.

The grid is one-dimensional, parts of a split aside; a block's tiles are Triton tensors, padded to
powers of two and masked only where padding or a ragged extent needs it.
"""

from mcfuser.codegen.triton.function import generate
from mcfuser.codegen.triton.record import from_record, to_record
from mcfuser.codegen.triton.source import Launch, TritonSource, Workspace
from mcfuser.lowering.triton.hopper.tensor_map import TensorMap

__all__ = [
    "Launch", "TensorMap", "TritonSource", "Workspace", "from_record", "generate", "to_record",
]  # fmt: skip
