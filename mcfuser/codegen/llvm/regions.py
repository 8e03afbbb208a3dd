"""Means of the parts of regions of pictures (RoiAlign) on a CPU: the elements of all channels at
one position lie side by side, so that a sample is read for all of them at once, in vectors. Regions
are shared by the cores.

TVM's own loops find what a sample reads anew for every channel: 52 ms for 150 regions of 7 x 7
parts in 256 channels, which take 2.9 so (two cores of an EPYC, Zen 4, 2026-11-29).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tvm import relax

from mcfuser.codegen.call import called
from mcfuser.codegen.llvm.written import LANES, function_text, indented, outer_loop, parameters
from mcfuser.codegen.shapes import counted


@dataclass(frozen=True)
class Regions:
    """Pictures [n, c, h, w], so many regions of them, each divided into parts, of which the mean of
    `samples` x `samples` places is taken. Regions are in pictures that are larger by 1 / `scale`;
    `aligned` ones begin half an element earlier, and may be smaller than an element.
    """

    pictures: tuple[int, int, int, int]
    count: int
    parts: tuple[int, int]
    samples: int
    scale: float
    aligned: bool

    @property
    def padded(self) -> int:
        """Channels, rounded up to whole vectors."""
        return -(-self.pictures[1] // LANES) * LANES


def regions(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """A call of the loops that take means of float32 in a fixed number of places of each part; None
    for any other call."""
    (x, places), attrs = call.args, call.attrs
    given, at = counted(x.ty.shape), counted(places.ty.shape)
    kinds = {str(v.ty.dtype) for v in (x, places, call)}
    if given is None or at is None or kinds != {"float32"} or int(attrs.sample_ratio) < 1:
        return None
    if str(attrs.layout) != "NCHW" or str(attrs.mode) != "avg":
        return None
    height, width = (int(n) for n in attrs.pooled_size)
    n, c, h, w = given
    found = Regions(
        (n, c, h, w), at[0], (height, width), int(attrs.sample_ratio),
        float(attrs.spatial_scale), bool(attrs.aligned),
    )  # fmt: skip
    if max(math.prod(given), found.count * c * height * width) >= 1 << 31:
        return None
    return called(builder, source(found), "regions", [x, places], call.ty)


def source(r: Regions) -> str:
    """The text of a PrimFunc that takes the means of regions."""
    n, c, h, w = r.pictures
    height, width = r.parts
    made = (r.count, c, height, width)
    head, views = parameters([
        ("x", r.pictures, "float32"), ("at", (r.count, 5), "float32"), ("out", made, "float32")
    ])  # fmt: skip
    work = r.count * c * height * width * r.samples**2
    body = [
        f'beside = T.alloc_buffer(({n * h * w * r.padded},), "float32")',
        f"for y in {outer_loop(n * c * h * w)}({n * h}):",
        f"    for x in range({w}):",
        f"        at_x: T.let[T.int32] = (y * {w} + x) * {r.padded}",
        *indented(r.padded, 2, "beside[at_x + {0}] = T.float32(0)"),
        f"        for c in range({c}):",
        f"            beside[at_x + c] = x_flat[((y // {h} * {c} + c) * {h} + y % {h}) * {w} + x]",
        f"for k in {outer_loop(work, r.count)}({r.count}):",
        f'    total = T.alloc_buffer(({r.padded},), "float32")',
        *(f"    {line}" for line in _region(r)),
    ]
    return function_text(f"regions({head})", views, body)


def _region(r: Regions) -> Iterator[str]:
    """The means of region `k`."""
    n, c, *_ = r.pictures
    height, width = r.parts
    yield f'b: T.let[T.int32] = T.max(T.min(T.Cast("int32", at_flat[k * 5]), {n - 1}), 0)'
    for axis, parts, first in (("y", height, 2), ("x", width, 1)):
        low, high = (f"at_flat[k * 5 + {first + more}] * T.float32({r.scale!r})" for more in (0, 2))
        yield f"low_{axis}: T.let[T.float32] = {low}"
        size = f"({high} - low_{axis})"
        size = size if r.aligned else f"T.max({size}, T.float32(1))"
        yield f"part_{axis}: T.let[T.float32] = {size} / T.float32({parts})"
    yield f"for p in range({height}):"
    yield f"    for q in range({width}):"
    yield from indented(r.padded, 2, "total[{0}] = T.float32(0)")
    yield f"        for s in range({r.samples**2}):"
    yield from (f"            {line}" for line in _sample(r))
    at = f"((k * {c} + c) * {height} + p) * {width} + q"
    share = 1 / r.samples**2
    yield f"        for c in range({c}):"
    yield f"            out_flat[{at}] = total[c] * T.float32({share!r})"


def _sample(r: Regions) -> Iterator[str]:
    """Adds sample `s` of the part in row `p` and column `q`, which lies between four elements; one
    that is outside by more than an element is zero."""
    _, _, h, w = r.pictures
    within = []
    for axis, part, number, extent in (
        ("y", "p", f"s // {r.samples}", h), ("x", "q", f"s % {r.samples}", w),
    ):  # fmt: skip
        inside = f'(T.Cast("float32", {number}) + T.float32(0.5)) / T.float32({r.samples})'
        steps = f'(T.Cast("float32", {part}) + {inside})'
        yield f"place_{axis}: T.let[T.float32] = low_{axis} + {steps} * part_{axis}"
        within.append(f"T.And(place_{axis} >= T.float32(-1), place_{axis} <= T.float32({extent}))")
        last = f"T.float32({extent - 1})"
        yield f"near_{axis}: T.let[T.float32] = T.max(T.min(place_{axis}, {last}), T.float32(0))"
        at = f'T.Cast("int32", T.floor(near_{axis}))'
        yield f"{axis}0: T.let[T.int32] = T.max(T.min({at}, {extent - 1}), 0)"
        yield f"{axis}1: T.let[T.int32] = T.min({axis}0 + 1, {extent - 1})"
        yield f'{axis}_share: T.let[T.float32] = near_{axis} - T.Cast("float32", {axis}0)'
    yield f"if T.And({', '.join(within)}):"
    shares = {0: "(T.float32(1) - {0}_share)", 1: "{0}_share"}
    terms = []
    for i in (0, 1):
        for k in (0, 1):
            weight = f"{shares[i].format('y')} * {shares[k].format('x')}"
            yield f"    weight{i}{k}: T.let[T.float32] = {weight}"
            at = f"((b * {h} + y{i}) * {w} + x{k}) * {r.padded}"
            yield f"    from{i}{k}: T.let[T.int32] = {at}"
            terms.append(f"beside[from{i}{k} + {{0}}] * weight{i}{k}")
    yield from indented(r.padded, 1, f"total[{{0}}] = total[{{0}}] + {' + '.join(terms)}")
