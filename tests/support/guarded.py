"""Runs kernels whose arrays lie beside memory that nobody may touch.

    python -m tests.support.guarded SEED COUNT

draws so many schedules over padded pictures, and calls each kernel twice: with every array right
before such a page, and right behind one. A kernel that touches more than its arrays ends the
process; the last line is its schedule.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from collections.abc import Callable

import numpy as np
import tvm

from mcfuser.codegen.tensorir import generate
from tests.support.drawn_boxes import drawn
from tests.support.tensorir_agree import call, compiled, drawn_arrays

ALIGNED = 64
"""Bytes by which TVM aligns arrays; between an array's end and the page there are fewer."""
_HELD: list[mmap.mmap] = []


def guarded(array: np.ndarray, before: bool) -> np.ndarray:
    """A copy of an array, right `before` a page that nobody may touch, or right behind one."""
    page, nbytes = mmap.PAGESIZE, -(-array.nbytes // ALIGNED) * ALIGNED
    pages = -(-nbytes // page) + 2
    memory = mmap.mmap(-1, pages * page)
    _HELD.append(memory)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    offset = (pages - 1) * page - nbytes if before else page
    copy = np.ndarray(array.shape, array.dtype, memory, offset)
    copy[...] = array
    for at in (0, pages - 1):
        failed = ctypes.CDLL(None).mprotect(ctypes.c_void_p(first + at * page), page, 0)
        assert not failed
    return copy


def placed(before: bool) -> Callable[[np.ndarray], tvm.runtime.Tensor]:
    return lambda array: tvm.runtime.from_dlpack(guarded(np.ascontiguousarray(array), before))


def main(seed: int, count: int) -> None:
    rng = random.Random(seed)
    cases = [drawn(rng) for _ in range(count)]
    sources = [generate(schedule, "kernel", knobs) for _, schedule, knobs in cases]
    functions = compiled([s.text for s in sources])
    for (chain, schedule, knobs), source, function in zip(cases, sources, functions, strict=True):
        flat, _ = drawn_arrays(chain)
        for before in (True, False):
            where = "before" if before else "behind"
            print(where, schedule.expression, schedule.tiles, knobs, chain, flush=True)
            call(source, function, schedule.chain, flat, {}, placed(before))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
