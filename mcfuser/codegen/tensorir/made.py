"""Products with weights that are made in registers, a block that has one scale at a time.

The products of a block are summed alone, and their sum is scaled. Numbers of four bits or less are
looked up in a register of 16 floats (lowering.tensorir.unpacked).
"""

from __future__ import annotations

from collections.abc import Callable

from mcfuser.codegen.tensorir.operands import Operands
from mcfuser.codegen.tensorir.right import made_lane
from mcfuser.codegen.tensorir.scalar import literal
from mcfuser.codegen.tensorir.writer import At, Writer
from mcfuser.lowering.tensorir.micro import WIDE
from mcfuser.lowering.tensorir.unpacked import LOOKED_UP, CodeTable, MadeWeights, made_of

UNROLLED = 4
"""The most numbers of a byte, which are written side by side so that it is loaded once."""


def made_weights(w: Writer, o: Operands) -> MadeWeights | None:
    """How the right operand of a product is made in registers, in blocks; None where it is not."""
    if o.right not in w.products.maps:
        return None
    return made_of(w.products.maps[o.right].body, o.roles.depth)


def code_table(w: Writer, made: MadeWeights) -> CodeTable | None:
    """The table in which numbers are looked up; None where there is none, or no instruction."""
    return made.table if w.lowering.lanes == WIDE else None


def fill_table(w: Writer, o: Operands, table: CodeTable) -> None:
    """Writes a table's values to the scratch that is loaded into a register."""
    for i, number in enumerate(table.values):
        w.put(f"{o.right}_codes[{i}] = {literal(number)}")


def multiply_made(
    w: Writer, o: Operands, made: MadeWeights, at: At, j0: str, left: Callable[[At], str]
) -> None:
    """Adds the products of a micro-tile to its accumulators; `left` gives an element of row `i` of
    the left operand."""
    vectors, table = range(o.width // w.lowering.lanes), code_table(w, made)
    with w.over(made.outer) as outer:
        for v in vectors:
            with w.micro(o.micro_rows):
                w.put(f"part{v}[i, j] = T.float32(0)")
        with w.over(made.inner, unrolled=UNROLLED) as inner:
            here = {**at, **outer, **inner}
            if table is not None:
                for v in vectors:
                    _look_up(w, o, table, here, (j0, v))
            with w.block(f"for i in T.unroll({o.micro_rows}):"):
                row = left(here)
                for v in vectors:
                    known = {table.made: f"number{v}[0, j]"} if table is not None else {}
                    with w.vector("j", w.lowering.lanes):
                        number = made_lane(w, o, here, j0, v, known).text(made.numbers)
                        w.put(f"part{v}[i, j] = part{v}[i, j] + {row} * {number}")
        for v in vectors:
            with w.micro(o.micro_rows):
                scale = made_lane(w, o, {**at, **outer}, j0, v, {}).text(made.scale)
                w.put(f"acc{v}[i, j] = acc{v}[i, j] + part{v}[i, j] * {scale}")


def _look_up(w: Writer, o: Operands, table: CodeTable, at: At, panel: tuple[str, int]) -> None:
    """Numbers of vector `v` of a panel, which the table has."""
    (j0, v), lanes = panel, w.lowering.lanes
    with w.vector("j", lanes):
        code = made_lane(w, o, at, j0, v, {}).typed(table.code).to("int32").text
        w.put(f"code{v}[0, j] = {code}")
    whole = f"T.Ramp(0, 1, {lanes})"
    words = f'"float32x{lanes}", "{LOOKED_UP}", {o.right}_codes[{whole}], code{v}[0, {whole}]'
    w.put(f"number{v}[0, {whole}] = T.call_llvm_pure_intrin({words})")
