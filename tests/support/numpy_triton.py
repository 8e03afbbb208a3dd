"""A stand-in for `triton.language` on NumPy arrays: kernels run block by block on the CPU.

It is stricter than a GPU: an address outside its array, an extent that is no power of two, a
product narrower than 16 or of two dtypes is an assertion, and what no block stores stays NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from mcfuser.codegen.triton import TensorMap, TritonSource

DTYPES = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32,
    "float64": np.float64, "int32": np.int32, "int64": np.int64, "bool": np.bool_,
    "int8": np.int8, "uint8": np.uint8, "int16": np.int16,
}  # fmt: skip


POISON = {"float32": np.nan, "float64": np.nan, "int32": -(1 << 30), "int64": -(1 << 60)}


class Tile(np.ndarray):
    """An array that stays an array where NumPy would give a scalar, with Triton's methods."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Tile:
        kwargs.pop("out", None)
        plain = [np.asarray(x) if isinstance(x, Tile) else x for x in inputs]
        found = np.asarray(getattr(ufunc, method)(*plain, **kwargs))
        doubles = any(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in plain)
        if found.dtype == np.float64 and not doubles:
            found = found.astype(np.float32)  # of whole numbers and a number: single in Triton
        return found.view(Tile)

    def to(self, dtype: Any) -> Tile:
        return tile(np.asarray(self).astype(dtype))


def tile(array: Any) -> Tile:
    found = np.asarray(array).view(Tile)
    for extent in found.shape:
        assert extent & (extent - 1) == 0, f"extent {extent} is no power of two"
    assert found.size <= 1 << 20
    return found


@dataclass
class Pointer:
    """Addresses into an array that lies flat in memory."""

    memory: np.ndarray
    at: Any = 0

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.at + offset)

    def __sub__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.at - offset)


@dataclass
class Map:
    """A tensor map over an array that lies flat in memory: outside the tensor there are zeros."""

    memory: np.ndarray
    m: TensorMap

    def load(self, at: Sequence[Any]) -> Tile:
        assert len(at) == len(self.m.box)
        lanes = np.ogrid[tuple(slice(n) for n in self.m.box)]
        positions = [int(first) + lane for first, lane in zip(at, lanes, strict=True)]
        where = sum(p * n for p, n in zip(positions, self.m.strides, strict=True))
        inside = np.full(self.m.box, True)
        for p, extent in zip(positions, self.m.shape, strict=True):
            inside &= (p >= 0) & (p < extent)
        found = self.memory[np.where(inside, self.m.offset + where, 0)]
        return tile(np.where(inside, found, np.zeros((), found.dtype)))


def load(pointer: Pointer, mask: Any = None, other: Any = None, cache_modifier: str = "") -> Tile:
    assert cache_modifier in ("", ".cg")
    memory = pointer.memory
    if memory.size % 2:  # the other element of a pair lies behind, and nothing may depend on it
        memory = np.append(memory, np.asarray(POISON.get(memory.dtype.name, 0), memory.dtype))
    at, inside = _addresses(Pointer(memory, pointer.at), mask)
    found = memory[np.where(inside, at, 0)]
    if mask is not None:
        assert other is not None, "what lies outside the mask would be undefined"
        found = np.where(inside, found, np.asarray(other, found.dtype))
    return tile(found)


def store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    at, inside = _addresses(pointer, mask)
    value = pointer.memory.dtype.type(value) if isinstance(value, int) else value
    assert np.shape(value) == at.shape, f"{np.shape(value)} is stored at {at.shape} addresses"
    assert np.asarray(value).dtype == pointer.memory.dtype
    pointer.memory[at[inside]] = np.asarray(value)[inside]


def _addresses(pointer: Pointer, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    at = np.asarray(pointer.at)
    inside = np.broadcast_to(True if mask is None else np.asarray(mask), at.shape)
    reached = at[inside]
    assert reached.size == 0 or (reached.min() >= 0 and reached.max() < pointer.memory.size)
    return at, inside


def _split(x: Any) -> tuple[Tile, Tile]:
    assert x.shape[-1] == 2
    return tile(x[..., 0]), tile(x[..., 1])


def atomic_add(pointer: Pointer, number: int, sem: str) -> Tile:
    assert sem == "acq_rel", "a block must see what the others stored before they counted"
    before = load(pointer)
    store(pointer, before + np.int32(number))
    return before


def dot(a: Any, b: Any, acc: Any = None, input_precision: str = "tf32") -> Tile:
    assert a.dtype == b.dtype, f"a product of {a.dtype} and {b.dtype}"
    assert min(*a.shape[-2:], *b.shape[-2:]) >= 16
    assert a.ndim == b.ndim in (2, 3)
    if a.dtype == np.float32 and input_precision != "ieee":
        found = _of_parts(np.asarray(a), np.asarray(b), input_precision)
    else:
        found = np.matmul(np.asarray(a, np.float32), np.asarray(b, np.float32))
    if acc is None:
        return tile(found)
    assert acc.shape == found.shape
    assert acc.dtype == np.float32
    return tile(acc + found)


def _of_parts(a: np.ndarray, b: np.ndarray, precision: str) -> np.ndarray:
    """A product as tensor cores compute it: what they multiply as TF32 has ten bits already, for
    they would cut off more."""
    if precision == "tf32":
        for x in (a, b):
            assert (x == to_tf32(x))[np.isfinite(x)].all(), "TF32 has 10 bits of mantissa"
        return np.matmul(a, b)
    rounded, count, most = {"tf32x3": (to_tf32, 2, 1), "bf16x6": (_to_bfloat16, 3, 2)}[precision]
    left, right = (_parts(x, rounded, count) for x in (a, b))
    pairs = [(i, j) for i in range(count) for j in range(count) if i + j <= most]
    return sum(np.matmul(left[i], right[j]) for i, j in reversed(pairs))


def _parts(x: np.ndarray, rounded: Callable[[np.ndarray], np.ndarray], n: int) -> list[np.ndarray]:
    parts = []
    for _ in range(n):
        parts.append(rounded(x))
        x = x - parts[-1]
    return parts


def _to_bfloat16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def to_tf32(x: np.ndarray) -> np.ndarray:
    """The nearest numbers with ten bits of mantissa, a half away from zero."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    near = ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), near, x)


def inline_asm_elementwise(text: str, constraints: str, args: list[Any], **_: Any) -> Any:
    """Waits and barriers do nothing here."""
    if "cvt.rna.tf32" not in text:
        return args[0]
    assert args[0].dtype == np.float32
    return tile(to_tf32(args[0]))


def where(condition: Any, a: Any, b: Any) -> Tile:
    assert np.asarray(condition).dtype == np.bool_
    plain = np.float32 if any(isinstance(x, float) for x in (a, b)) else np.int32
    dtype = next((x.dtype for x in (a, b) if isinstance(x, np.ndarray)), plain)
    return tile(np.where(condition, a, b).astype(dtype))


def _on(function: Any) -> Any:
    return lambda x: tile(function(np.asarray(x)))


def multiple_of(x: Any, number: int) -> Tile:
    """The addresses, which are multiples of a number."""
    assert not np.any(np.asarray(x) % number), f"{x} are no multiples of {number}"
    return tile(x)


def language(place: tuple[int, int]) -> SimpleNamespace:
    """The module as one block sees it."""
    return SimpleNamespace(
        **DTYPES,
        int1=np.bool_,
        constexpr=lambda value: value,
        program_id=lambda axis: tile(np.int32((*place, 0)[axis])),
        inline_asm_elementwise=inline_asm_elementwise,
        static_range=range, cdiv=lambda a, b: -(-a // b), debug_barrier=lambda: None,
        arange=lambda first, last: tile(np.arange(first, last, dtype=np.int32)),
        zeros=lambda shape, dtype: tile(np.zeros(shape, dtype)),
        full=lambda shape, value, dtype: tile(np.full(shape, value, dtype)),
        load=load, store=store, dot=dot, where=where, atomic_add=atomic_add,
        maximum=lambda a, b: tile(np.maximum(a, b)), minimum=lambda a, b: tile(np.minimum(a, b)),
        max=lambda x, axis: tile(np.max(np.asarray(x), axis)),
        sum=lambda x, axis: tile(np.sum(np.asarray(x), axis, dtype=np.asarray(x).dtype)),
        exp=_on(np.exp), exp2=_on(np.exp2), log=_on(np.log), sqrt=_on(np.sqrt), abs=_on(np.abs),
        floor=_on(np.floor), erf=_on(np.vectorize(math.erf, otypes=[np.float32])),
        rsqrt=_on(lambda x: 1 / np.sqrt(x)),
        trans=_on(np.transpose), permute=lambda x, order: tile(np.transpose(x, order)),
        multiple_of=multiple_of,
        reshape=lambda x, shape: tile(np.reshape(x, shape)),
        broadcast_to=lambda x, shape: tile(np.broadcast_to(x, shape)),
        split=_split,
    )  # fmt: skip


def iterations(*ends: Any) -> Iterator[Tile]:
    """Python's range in a kernel, whose numbers are tiles there."""
    return (tile(np.int32(i)) for i in range(*map(int, ends)))


def workspaces(source: TritonSource) -> dict[str, np.ndarray]:
    """Poisoned, but for what is to hold zeros."""
    return {
        w.name: np.full(w.size, 0 if w.zero else POISON[w.dtype], DTYPES[w.dtype])
        for w in source.workspace
    }


def run(
    source: TritonSource, memory: Mapping[str, np.ndarray], extents: Mapping[str, int] | None = None
) -> None:
    """Runs every block of every kernel on flat arrays, by parameter; outputs are written in place.

    `extents` are those known at run time, by axis. Workspaces are poisoned, counters zero before
    and after.
    """
    sizes = extents or {}
    triton = SimpleNamespace(jit=lambda kernel: kernel)
    text = source.text.replace("import triton.language as tl\n", "").replace("import triton\n", "")
    code = compile(text, f"{source.name}.py", "exec")
    workspace = workspaces(source)
    with np.errstate(all="ignore"):
        for launch in source.launches:
            arguments = [Pointer((memory | workspace)[name]) for name in launch.arguments]
            maps = [Map(memory[m.tensor], m) for m in launch.maps]
            numbers = [tile(np.int32(sizes[a])) for a in launch.extents]
            x, y, _ = launch.blocks(sizes)
            for place in product(range(x), range(y)):
                space: dict[str, Any] = {
                    "triton": triton,
                    "tl": language(place),
                    "range": iterations,
                }
                exec(code, space)
                space[launch.name](*arguments, *maps, *numbers)
    assert all(not workspace[w.name].any() for w in source.workspace if w.zero)
