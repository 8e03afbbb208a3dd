"""Generated kernels: their text, and how to launch them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mcfuser.lowering.triton.hopper.tensor_map import TensorMap


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that kernels take besides their tensors, of `size` elements.

    Where `zero`, it holds zeros before the first launch, and again after every one.
    """

    name: str
    dtype: str
    size: int
    zero: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of a source, and the blocks that it runs in.

    It takes pointers to its `arguments`, tensors and workspaces; then `maps`, each of them by value
    and followed by its shape (int32) and strides (int64); then an int32 for each of `extents`, the
    axes whose extent is known at run time only. `grid` holds extents, such an axis by its name,
    with the tile that one block covers; their iterations are counted along x, and `parts` along y.
    """

    name: str
    arguments: tuple[str, ...]
    extents: tuple[str, ...]
    grid: tuple[tuple[int | str, int], ...]
    parts: int = 1
    maps: tuple[TensorMap, ...] = ()

    def blocks(self, extents: Mapping[str, int]) -> tuple[int, int, int]:
        """Blocks along x, y and z for these run-time extents, by axis. Raises KeyError where one
        is missing."""
        sizes = ((n if isinstance(n, int) else extents[n], tile) for n, tile in self.grid)
        return math.prod(-(-n // tile) for n, tile in sizes), self.parts, 1


@dataclass(frozen=True, slots=True)
class TritonSource:
    """The text of one kernel, or of two that run one after the other, and how to launch them.

    `parameters` are the tensors that they take, the chain's inputs and then its outputs, `dtypes`
    theirs; they write the last `written` of them. Each block has `threads` threads; Triton is told
    of `warps`, and where that is less, the rest has work of its own: the text is Gluon then,
    Triton's language for kernels that say which thread has what. Kernels that are `dependent` wait
    for those ahead of them, and may be launched before these end.
    """

    text: str
    launches: tuple[Launch, ...]
    parameters: tuple[str, ...]
    dtypes: tuple[str, ...]
    written: int
    warps: int
    stages: int
    threads: int
    workspace: tuple[Workspace, ...] = ()
    dependent: bool = False

    @property
    def gluon(self) -> bool:
        return self.threads > 32 * self.warps

    @property
    def name(self) -> str:
        """The first kernel's."""
        return self.launches[0].name

    @property
    def grid(self) -> tuple[int, int, int]:
        """The first kernel's blocks, where no extent is known at run time only."""
        return self.launches[0].blocks({})

    @property
    def dtype_of(self) -> Mapping[str, str]:
        """The dtypes of all that kernels take pointers to, by name."""
        known = dict(zip(self.parameters, self.dtypes, strict=True))
        return known | {w.name: w.dtype for w in self.workspace}
