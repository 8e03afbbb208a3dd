"""Gluon in place of Triton: the same words, and what must be said besides."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcfuser.codegen.triton.frame import mentions
from mcfuser.space.statement import Illegal

HEAD = (
    "from triton.experimental import gluon",
    "from triton.experimental.gluon import language as gl",
    "from triton.experimental.gluon.language.nvidia import hopper",
    "from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma",
    "",
    "# Triton 3.9 has renamed them",
    'fetch = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared',
    'put = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global',
)
FUNCTIONS = {
    "lanes": (
        "def lanes(x):",
        "    # a row lies in four threads, two neighbours at a time; each adds up what it has",
        "    return gl.sum(gl.sum(x.reshape([x.shape[0], x.shape[1] // 8, 4, 2]), 3), 1)",
    ),
    "by_lane": (
        "def by_lane(x, like):",
        "    return gl.convert_layout(x, gl.SliceLayout(1, like.type.layout))[:, None]",
    ),
}
"""What groups call that Gluon does not have."""
LIES = (
    ("TILE", "TILE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {}, 16]))"),
    ("ROWS", "ROWS = gl.constexpr(gl.SliceLayout(1, TILE))"),
    ("COLUMNS", "COLUMNS = gl.constexpr(gl.SliceLayout(0, TILE))"),
    ("LEFT", "LEFT = gl.constexpr(gl.DotOperandLayout(0, TILE, 2))"),
)
"""How a group's threads share a tile: as its products leave it."""
MOVES = re.compile(r"\btl\.(broadcast_to|trans|permute|reshape|dot|debug_barrier|atomic_add)\b")
"""What moves values among threads, in ways that Gluon must be told."""
FILLED = re.compile(r"\btl\.full\((?!.*\b(TILE|ROWS|COLUMNS)\))")


def translated(lines: Sequence[str], columns: int) -> list[str]:
    """Functions that are written in Triton's words, in Gluon, after what they use. A group's tiles
    lie as products of so many columns leave them.

    Raises Illegal where values would move among threads.
    """
    if any(MOVES.search(line) or FILLED.search(line) for line in lines):
        raise Illegal("a group would move values among its threads")
    lies = [words.format(columns) for name, words in LIES if mentions(lines, name)]
    if lies and not lies[0].startswith("TILE"):
        lies.insert(0, LIES[0][1].format(columns))
    used = [f for name, f in FUNCTIONS.items() if mentions(lines, name)]
    called = [line for f in used for line in ("", "", "@gluon.jit", *f)]
    return [*lies, *called, "", "", *(re.sub(r"\btl\.", "gl.", x) for x in lines)]
