"""CUDA C for a recurrence's products: a block's part of a matrix by a vector in shared memory.

Of 16 bits they are made by tensor cores, whose eight columns are rows of the batch, else lane by
lane. Either leaves its sums in shared memory, a part of the depth after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mcfuser.chain.recurrence import RecurrentStage
from mcfuser.codegen.cuda.cluster import THREADS, ClusterWalk, Division

TENSOR_CORE = """
__device__ __forceinline__ void multiply(float (&sums)[4], uint4 a, unsigned b0, unsigned b1) {{
  asm("mma.sync.aligned.m16n8k16.row.col.f32.{type}.{type}.f32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}}
"""
"""The product of a tile of 16 by 16 by eight columns, of a `type` that PTX names."""


def product(
    walk: ClusterWalk, stage: RecurrentStage, division: Division, begun: int, vector: str
) -> Iterator[str]:
    """Statements that leave a stage's sums in `sums`, [parts, rows, height of its matrix]. Its
    pieces are those from `begun` on, and `vector` is where the vector's rows begin."""
    yield f"if (warp < {division.groups * division.parts}) {{"
    yield f"  const int part = warp / {division.groups}, group = warp % {division.groups};"
    by = _by_tensor_core if walk.size == 2 else _by_lane
    yield from indented(by(walk, division, begun, vector))
    yield "}"


def _by_tensor_core(walk: ClusterWalk, d: Division, begun: int, vector: str) -> Iterator[str]:
    """Two products are under way for each tile. Columns that are no rows of the batch read the last
    one, and are not kept."""
    row = f"min(lane / 4, {walk.rows - 1}) * {walk.width}"
    first = f"{vector} + {row} + part * {d.deep * walk.depth}"
    piece = f"{begun} + (m * {d.deep} + k) * 2"
    yield f"float made[{d.each}][2][4] = {{}};"
    yield f"const uint4* from = reinterpret_cast<const uint4*>({first});"
    yield from unrolled("k", d.deep, (
        "const uint4 x = from[k * 4 + lane % 4];",
        *unrolled("m", d.each, (
            f"multiply(made[m][0], {_piece(walk, piece)}, x.x, x.y);",
            f"multiply(made[m][1], {_piece(walk, f'{piece} + 1')}, x.z, x.w);",
        )),
    ))  # fmt: skip
    yield from unrolled("m", d.each, unrolled("e", 2, (
        "const int r = lane % 4 * 2 + e;",
        f"if (r >= {walk.rows}) break;",
        f"float* to = {_sums(walk, d)} + lane / 4;",
        "to[0] = made[m][0][e] + made[m][1][e];",
        "to[8] = made[m][0][e + 2] + made[m][1][e + 2];",
    )))  # fmt: skip


def _by_lane(walk: ClusterWalk, d: Division, begun: int, vector: str) -> Iterator[str]:
    """Each lane has a row of a tile, and all of them read the same of the vector."""
    sums = (f"made[m][r] = fmaf(__uint_as_float(a.{c}), x[r].{c}, made[m][r]);" for c in "xyzw")
    place = f"from + r * {walk.width} + k * {walk.depth}"
    yield f"float made[{d.each}][{walk.rows}] = {{}};"
    yield f"const float* from = {vector} + part * {d.deep * walk.depth};"
    yield from unrolled("k", d.deep, (
        f"float4 x[{walk.rows}];",
        *unrolled("r", walk.rows, (f"x[r] = *reinterpret_cast<const float4*>({place});",)),
        *unrolled("m", d.each, (
            f"const uint4 a = {_piece(walk, f'{begun} + m * {d.deep} + k')};",
            *unrolled("r", walk.rows, sums),
        )),
    ))  # fmt: skip
    to = f"{_sums(walk, d)}[lane] = made[m][r];"
    yield from unrolled("m", d.each, unrolled("r", walk.rows, (to,)))


def _sums(walk: ClusterWalk, d: Division) -> str:
    """Where the sums of a tile `m` and a row `r` begin."""
    tile = f"(m * {d.groups} + group) * {walk.tile}"
    return f"(sums + (part * {walk.rows} + r) * {walk.height(d)} + {tile})"


def _piece(walk: ClusterWalk, number: str) -> str:
    """A piece of the matrices: one that is held, or one further on."""
    held = walk.held
    if walk.pieces == held:
        return f"held[{number}]"
    further = f"further[({number} - {held}) * {THREADS} + thread]"
    return f"({number} < {held} ? held[min({number}, {held - 1})] : {further})"


def unrolled(name: str, count: int, lines: Iterable[str]) -> Iterator[str]:
    """An unrolled loop."""
    yield "#pragma unroll"
    yield f"for (int {name} = 0; {name} < {count}; ++{name}) {{"
    yield from indented(lines)
    yield "}"


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a block of statements."""
    return (f"  {line}" for line in lines)
