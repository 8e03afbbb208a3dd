"""The lines before a kernel in Gluon: imports, layouts of tiles, and functions."""

from __future__ import annotations

from collections.abc import Collection

from mcfuser.lowering.triton.hopper.groups import WarpGroups
from mcfuser.space.statement import Repair, statements

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
"""Functions that kernels call and that Gluon does not have."""
LAYOUTS = {
    "TILE": "TILE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {}, 16]))",
    "ROWS": "ROWS = gl.constexpr(gl.SliceLayout(1, TILE))",
    "COLUMNS": "COLUMNS = gl.constexpr(gl.SliceLayout(0, TILE))",
    "LEFT": "LEFT = gl.constexpr(gl.DotOperandLayout(0, TILE, 2))",
}
"""Layouts of a warp group's tiles: those of its products' results, operands and vectors."""


def prelude(groups: WarpGroups, arrangements: Collection[str]) -> list[str]:
    """What stands before the kernel: the layouts of its tiles, those of its `arrangements` and of
    its products, and the functions that it calls."""
    named = {"TILE", *arrangements} | ({"ROWS"} if groups.lanes else set())
    dots = groups.layout.dots.values()
    if any(roles.left.tensor not in groups.rings for roles in dots):
        named.add("LEFT")
    lines = [words.format(groups.columns) for name, words in LAYOUTS.items() if name in named]
    every = (s for s, _ in statements(groups.whole.body))
    repaired = any(isinstance(s, Repair) and s.buffer in groups.lanes for s in every)
    called = {"lanes": bool(groups.lanes), "by_lane": repaired}
    for name, function in FUNCTIONS.items():
        lines += ["", "", "@gluon.jit", *function] if called[name] else []
    return lines
