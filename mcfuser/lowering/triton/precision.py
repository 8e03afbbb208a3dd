"""How the tensor cores compute products of float32 operands, whose mantissas are longer than those
of the numbers that they multiply: each operand is rounded to one such number, or is written as a
sum of several, and the products of these are added up in float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcfuser.chain import TF32

THREADS = "ieee"
"""No tensor cores: threads multiply float32 numbers."""


@dataclass(frozen=True, slots=True)
class DotPrecision:
    """What a product of float32 operands costs on the tensor cores.

    `products` is the number of products of parts, `instructions` that of instructions for the work
    of one instruction of 16-bit operands. The parts of an operand have `nbytes` bytes an element
    together, and a thread runs so many `operations` to make them of it, in so many `registers`.
    """

    products: int
    instructions: int
    nbytes: int
    operations: int
    registers: float


PLAIN = DotPrecision(1, 1, 0, 0, 0.0)
"""Of operands that tensor cores multiply as they are."""
PRECISIONS: Mapping[str, DotPrecision] = {
    THREADS: DotPrecision(0, 0, 0, 0, 0.0),
    "tf32x3": DotPrecision(3, 6, 8, 8, 1.6),
    "bf16x6": DotPrecision(6, 6, 6, 14, 2.1),
    TF32: DotPrecision(1, 2, 4, 2, 0.8),
}  # fmt: skip
"""By the names that Triton gives them. Three products of two TF32 parts leave out less than sums of
float32 lose by rounding, and so do six of three bfloat16 parts. An instruction for TF32 has half
the depth of one for 16 bits."""
