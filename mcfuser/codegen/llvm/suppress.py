"""Non-maximum suppression on a CPU: the best score that is left is chosen, and as a pass over all
boxes suppresses those that overlap with it, it finds the next best, in vectors. The classes of the
pictures are shared by the cores.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax

from mcfuser.chain.suppression import Suppression
from mcfuser.codegen.call import called
from mcfuser.codegen.llvm.written import LANES, function_text, indented, outer_loop, parameters
from mcfuser.codegen.shapes import fixed
from mcfuser.codegen.suppressions import with_suppressions

_NONE = 'T.float32("-inf")'
"""The score of what is suppressed."""
_CORNERS = ("low_y", "low_x", "high_y", "high_x", "area")


def suppressions() -> tvm.transform.Pass:
    """Calls loops that compute a module's suppressions."""

    def apply(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return with_suppressions(module, suppression)

    return tvm.transform.module_pass(apply, opt_level=0, name="mcfuser.Suppressions")


def suppression(builder: relax.BlockBuilder, call: relax.Call, what: Suppression) -> relax.Expr:
    """The call of loops that compute what a call of a suppression stands for."""
    boxes, scores = call.args[1].fields
    extents = fixed(scores.ty.shape)
    assert extents is not None
    pictures, classes, n = extents
    text = source(what, pictures, classes, n)
    return called(builder, text, "suppression", [boxes, scores], call.ty)


def source(what: Suppression, pictures: int, classes: int, n: int) -> str:
    """The text of a PrimFunc that chooses boxes among `n` of each picture."""
    most, units, padded = what.most, pictures * classes, -(-n // LANES) * LANES
    head, views = parameters([
        ("box", (pictures, n, 4), "float32"), ("score", (pictures, classes, n), "float32"),
        ("row", (units * most, 3), "int64"),
    ])  # fmt: skip
    floats = {**dict.fromkeys(_CORNERS, pictures * padded), "left": units * padded,
              "best": units * LANES, "top": units * LANES}  # fmt: skip
    whole = {"at": units * LANES, "now": units * LANES, "number": units * LANES,
             "chosen": units * most, "total": 1}  # fmt: skip
    body = [
        *(f'{name} = T.alloc_buffer(({size},), "float32")' for name, size in floats.items()),
        *(f'{name} = T.alloc_buffer(({size},), "int32")' for name, size in whole.items()),
        f"for p in range({pictures}):",
        *_under(_corners(what, n, padded)),
        f"for u in {outer_loop(units * n * min(most, LANES), units)}({units}):",
        *_under(_chosen(what, classes, n, padded, most)),
        *_gathered(classes, units, most),
    ]
    return function_text(f"suppression({head})", views, body)


def _under(lines: Iterator[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _corners(what: Suppression, n: int, padded: int) -> Iterator[str]:
    """The least and largest coordinates of picture `p`'s boxes, and their areas; what fills the
    last vector has none."""
    yield from indented(padded, 0, f"area[p * {padded} + {{0}}] = T.float32(0)")
    for name in _CORNERS[:-1]:
        yield from indented(padded, 0, f"{name}[p * {padded} + {{0}}] = T.float32(0)")
    yield f"for i in range({n}):"
    given = [f"box_flat[(p * {n} + i) * 4 + {k}]" for k in range(4)]
    for axis, name in enumerate("yx"):
        if what.centered:
            at, half = given[1 - axis], f"{given[3 - axis]} / T.float32(2)"
            low, high = f"{at} - {half}", f"{at} + {half}"
        else:
            pair = f"{given[axis]}, {given[axis + 2]}"
            low, high = f"T.min({pair})", f"T.max({pair})"
        yield f"    low_{name}[p * {padded} + i] = {low}"
        yield f"    high_{name}[p * {padded} + i] = {high}"
    sides = (f"(high_{d}[p * {padded} + i] - low_{d}[p * {padded} + i])" for d in "yx")
    yield f"    area[p * {padded} + i] = {' * '.join(sides)}"


def _chosen(what: Suppression, classes: int, n: int, padded: int, most: int) -> Iterator[str]:
    """The boxes that are chosen for class `u` of all pictures' classes, by falling scores."""
    lane, score = f"u * {LANES}", f"score_flat[u * {n} + {{0}}]"
    passes = f"T.Select({score} > T.float32({what.least!r}), {score}, {_NONE})"
    yield f"picture: T.let[T.int32] = u // {classes}"
    yield f"number[{lane}] = 0"
    yield from indented(padded, 0, f"left[u * {padded} + {{0}}] = {_NONE}")
    given = score if what.least is None else passes
    yield from indented(n, 0, f"left[u * {padded} + {{0}}] = {given}")
    yield from _next(padded, ())
    yield f"for step in range({most}):"
    yield f"    if number[{lane}] == step:"
    yield f"        top[{lane}] = best[{lane}]"
    yield f"        now[{lane}] = at[{lane}]"
    yield f"        for q in range({LANES}):"
    equal = f"T.And(best[{lane} + q] == top[{lane}], at[{lane} + q] < now[{lane}])"
    yield f"            if T.Or(best[{lane} + q] > top[{lane}], {equal}):"
    yield f"                top[{lane}] = best[{lane} + q]"
    yield f"                now[{lane}] = at[{lane} + q]"
    yield f"        if top[{lane}] > {_NONE}:"
    yield f"            chosen[u * {most} + step] = now[{lane}]"
    yield f"            number[{lane}] = step + 1"
    yield f"            left[u * {padded} + now[{lane}]] = {_NONE}"
    for name in _CORNERS:
        yield f"            own_{name}: T.let[T.float32] = {name}[picture * {padded} + now[{lane}]]"
    for line in _next(padded, _overlapping(what, padded)):
        yield f"            {line}"


def _next(padded: int, suppressed: tuple[str, ...]) -> Iterator[str]:
    """The best scores that are left in each lane of vectors, of equal ones the first, once what is
    `suppressed` (conditions) is not."""
    lane = f"u * {LANES} + j"
    yield f"for j in T.vectorized({LANES}):"
    yield f"    best[{lane}] = {_NONE}"
    yield f"for j in T.vectorized({LANES}):"
    yield f"    at[{lane}] = 0"
    yield f"for v in range({padded // LANES}):"
    here = f"left[u * {padded} + v * {LANES} + j]"
    if suppressed:
        condition = suppressed[0]
        for one in suppressed[1:]:
            condition = f"T.And({condition}, {one})"
        yield f"    for j in T.vectorized({LANES}):"
        yield f"        {here} = T.Select({condition}, {_NONE}, {here})"
    yield f"    for j in T.vectorized({LANES}):"
    yield f"        at[{lane}] = T.Select({here} > best[{lane}], v * {LANES} + j, at[{lane}])"
    yield f"    for j in T.vectorized({LANES}):"
    yield f"        best[{lane}] = T.Select({here} > best[{lane}], {here}, best[{lane}])"


def _overlapping(what: Suppression, padded: int) -> tuple[str, ...]:
    """The conditions under which a box overlaps with the chosen one by more than may be."""
    other = {name: f"{name}[picture * {padded} + v * {LANES} + j]" for name in _CORNERS}
    sides, apart = [], []
    for d in "yx":
        low = f"T.max(own_low_{d}, {other[f'low_{d}']})"
        high = f"T.min(own_high_{d}, {other[f'high_{d}']})"
        sides.append(f"({high} - {low})")
        apart.append(f"{high} > {low}")
    common = " * ".join(sides)
    union = f"(own_area + {other['area']} - {common})"
    return (
        *apart, "own_area > T.float32(0)", f"{other['area']} > T.float32(0)",
        f"{union} > T.float32(0)", f"{common} / {union} > T.float32({what.overlap!r})",
    )  # fmt: skip


def _gathered(classes: int, units: int, most: int) -> Iterator[str]:
    """The rows of all classes, one after the other."""
    yield from indented(units * most * 3, 0, "row_flat[{0}] = T.int64(-1)")
    yield "total[0] = 0"
    yield f"for u in range({units}):"
    yield f"    for i in range({most}):"
    yield f"        if i < number[u * {LANES}]:"
    for k, value in enumerate((f"u // {classes}", f"u % {classes}", f"chosen[u * {most} + i]")):
        yield f'            row_flat[total[0] * 3 + {k}] = T.Cast("int64", {value})'
    yield "            total[0] = total[0] + 1"
