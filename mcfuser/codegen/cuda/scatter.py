"""Elements and slices that are written, or combined, to places of an array on a GPU: a thread for
every element, which are combined atomically.

TVM's own kernels give one thread all updates of a place in a slice, or of a line: 60,200 us for
200,000 slices of 64 numbers that are added to 20,000 (H200, 2026-11-29). What is added atomically
is added in any order: the last bits of floats differ from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from tvm import relax

from mcfuser.codegen.cuda.kernel import GivenArray, SourceOperator, for_each
from mcfuser.codegen.cuda.scalar import NUMBER, arithmetic
from mcfuser.codegen.shapes import counted

REDUCTIONS: Mapping[str, str] = MappingProxyType({
    "update": "y", "add": "x + y", "mul": "x * y", "min": "y < x ? y : x", "max": "y > x ? y : x",
})  # fmt: skip
"""What is left of an element x and its update y."""
SINGLE: Mapping[str, str] = MappingProxyType({
    "float32": "unsigned", "int32": "unsigned", "uint32": "unsigned",
    "float16": "unsigned short", "bfloat16": "unsigned short",
    "float64": "unsigned long long", "int64": "unsigned long long", "uint64": "unsigned long long",
})  # fmt: skip
"""Types whose elements are exchanged at once, as these bits. Those of other types are only
replaced."""
ADDED = ("float32", "float64", "int32", "uint32")
"""Types that the device itself adds to memory."""
FUNCTIONS = """
// Puts f(x, y) in the place of x, whatever other threads put there.
template <typename Bits, typename T, typename F>
__device__ __forceinline__ void combined(T* place, T y, F f) {
  Bits* const bits = reinterpret_cast<Bits*>(place);
  Bits seen = *bits, before;
  do {
    before = seen;
    T x = *reinterpret_cast<const T*>(&before);
    x = f(x, y);
    const Bits after = *reinterpret_cast<const Bits*>(&x);
    if (after == before) return;
    seen = atomicCAS(bits, before, after);
  } while (seen != before);
}
"""


def scattered(call: relax.Call) -> SourceOperator | None:
    """The kernel of a call of scatter_nd or scatter_elements on fixed extents; None for any other
    call."""
    x, indices, _ = call.args
    shapes = [s for v in call.args if (s := counted(v.ty.shape)) is not None]
    dtype, index = str(x.ty.dtype), str(indices.ty.dtype)
    reduction = str(call.attrs.reduction)
    if dtype not in NUMBER or index not in ("int32", "int64") or reduction not in REDUCTIONS:
        return None
    if len(shapes) < len(call.args) or (reduction != "update" and dtype not in SINGLE):
        return None
    data, places, changes = shapes
    arrays = (
        GivenArray("x", data, dtype), GivenArray("at", places, index),
        GivenArray("change", changes, dtype), GivenArray("out", data, dtype),
    )  # fmt: skip
    if call.op.name == "relax.scatter_nd":
        return slices(arrays, reduction)
    return elements(arrays, int(call.attrs.axis) % len(data), reduction)


def slices(arrays: tuple[GivenArray, ...], reduction: str) -> SourceOperator:
    """The kernel that copies an array, and changes its slices at the places [.., k] along its first
    k dimensions. Places that are outside are moved to the nearest that are inside."""
    data, places = arrays[0].extents, arrays[1].extents
    k = places[-1]
    inner = math.prod(data[k:])
    lines = [f"const int slice = i / {inner};", "int to = 0;"]
    for d in range(k):
        found = _inside(f"at[slice * {k} + {d}]", data[d])
        lines.append(f"to = to * {data[d]} + {found};")
    lines.append(f"to = to * {inner} + i % {inner};")
    return _operator(arrays, reduction, lines)


def elements(arrays: tuple[GivenArray, ...], axis: int, reduction: str) -> SourceOperator:
    """The kernel that copies an array, and changes the elements at the positions of updates, but
    for the one along an axis, which is given."""
    data, places = arrays[0].extents, arrays[1].extents
    lines = ["int to = 0;"]
    for d, extent in enumerate(data):
        later = math.prod(places[d + 1 :])
        own = _inside("at[i]", extent) if d == axis else f"i / {later} % {places[d]}"
        lines.append(f"to = to * {extent} + {own};")
    return _operator(arrays, reduction, lines)


def _operator(arrays: tuple[GivenArray, ...], reduction: str, place: list[str]) -> SourceOperator:
    """The kernel that copies the first array, and changes the copy by each element `i` of the third
    at the place `to`."""
    x, _, change, _ = arrays
    steps = (
        for_each("copy", math.prod(x.extents), ["out[i] = x[i];"]),
        for_each("apply", math.prod(change.extents), [*place, _change(x.dtype, reduction)]),
    )
    return SourceOperator("scatter", arrays, 1, FUNCTIONS, steps)


def _change(dtype: str, reduction: str) -> str:
    """The statement that changes the element at `to` by the update `i`."""
    if reduction == "update":
        return "out[to] = change[i];"
    if reduction == "add" and dtype in ADDED:
        return "atomicAdd(out + to, change[i]);"
    number, (kind, wide, narrow) = NUMBER[dtype], arithmetic(dtype)
    value = narrow.format(REDUCTIONS[reduction])
    function = (
        f"[]({number} a, {number} b) {{ const {kind} x = {wide.format('a')}, "
        f"y = {wide.format('b')}; return ({number})({value}); }}"
    )
    return f"combined<{SINGLE[dtype]}>(out + to, change[i], {function});"


def _inside(place: str, extent: int) -> str:
    """A place within an extent."""
    return f"(int)min(max((long long){place}, 0ll), {extent - 1}ll)"
