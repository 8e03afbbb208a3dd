"""Shapes and limits of NVIDIA's matrix instructions and thread groups, each stated once."""

from __future__ import annotations

import re

HOPPER = "sm_90"
"""The architecture that has tensor maps and products of whole warp groups (wgmma)."""
DEPENDENT = 90
"""The first architecture, as a number, whose kernels may start before those ahead of them end."""
AMPERE = 80
"""The first architecture, as a number, whose tensor cores multiply TF32 and bfloat16."""
HALF = ("float16", "bfloat16")
"""Types that are stored in two bytes, and computed with in float32."""
LEAST = 16
"""The fewest rows, columns or depth of a product that Triton takes: lanes are padded to it."""
ROWS = 64
"""Rows of a product that a warp group multiplies in one instruction."""
COLUMNS = 8
"""Columns of a product that one warp takes at a time."""
WIDEST = 256
"""The most columns that one instruction of a warp group multiplies."""
WARPS = 4
"""Warps of a warp group."""
THREADS = 32 * WARPS
"""Threads of a warp group."""


def architecture(arch: str) -> int:
    """The number of an architecture such as `sm_90`; 0 for what is none."""
    found = re.fullmatch(r"sm_(\d+)[a-z]?", arch)
    return int(found[1]) if found else 0


def waits(arch: str) -> bool:
    """Whether kernels for an architecture such as `sm_90` can wait for those ahead of them, and so
    start before these end."""
    return architecture(arch) >= DEPENDENT


def multiplies_tf32(arch: str) -> bool:
    """Whether the tensor cores of an architecture multiply TF32 and bfloat16."""
    return architecture(arch) >= AMPERE
