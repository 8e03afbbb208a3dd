"""Models of kernels and concatenations, which are made of a few calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from tvm import relax, tirx

from mcfuser.codegen.cuda.places import ALIGNED
from mcfuser.codegen.script import prim_func

WIDTH = ALIGNED // 4
"""Elements of a position: each begins at a multiple of `ALIGNED` bytes."""
Make = Callable[["Model", relax.Var], Sequence[relax.Expr]]


def installed(text: str) -> tirx.PrimFunc:
    """A function as kernels are installed."""
    marked = {"tirx.is_scheduled": True, "op_pattern": 8, "tirx.noalias": True}
    return prim_func(text).with_attrs(marked).without_attr("global_symbol")


def kernel(read: Sequence[int], written: Sequence[int], scale: int) -> tirx.PrimFunc:
    """A kernel on flat tensors of so many elements: each element it writes is a sum of one element
    of each that it reads, in no simple order."""
    tensors = [(f"x{i}", n) for i, n in enumerate(read)]
    tensors += [(f"y{i}", n) for i, n in enumerate(written)]
    parameters = ", ".join(f'{name}: T.Buffer(({n},), "float32")' for name, n in tensors)
    lines = ["@T.prim_func(s_tir=True, private=True)", f"def kernel({parameters}):"]
    lines += ['    with T.sblock("root"):', "        T.reads()", "        T.writes()"]
    for i, n in enumerate(written):
        terms = [f"x{k}[(i * {2 * k + 3} + {i}) % {m}]" for k, m in enumerate(read)]
        lines.append(f"        for i in range({n}):")
        lines.append(f"            y{i}[i] = {' + '.join(terms)} + T.float32({scale + i})")
    return installed("\n".join(lines))


class Model:
    """A module as it is made: values of one picture, positions by `WIDTH` elements."""

    def __init__(self, make: Make, pictures: int = 1, extent: Any = 2, width: int = WIDTH) -> None:
        self.builder = relax.BlockBuilder()
        self.width, self.scale = width, 0
        x = relax.Var("x", relax.TensorType((pictures, extent, width), "float32"))
        with self.builder.function("main", [x]):
            with self.builder.dataflow():
                made = [self.builder.emit_output(e) for e in make(self, x)]
            self.builder.emit_func_output(relax.Tuple(made))
        self.module = self.builder.get()

    def emit(self, e: relax.Expr) -> relax.Var:
        return self.builder.emit(e)

    def run(self, values: Sequence[relax.Expr], *positions: int) -> list[relax.Var]:
        """What a kernel makes of values: tensors of so many positions."""
        read = [math.prod(map(int, v.ty.shape.values)) for v in values]
        written = [n * self.width for n in positions]
        self.scale += 1
        name = self.builder.add_func(kernel(read, written, self.scale), "kernel")
        flat = [self.emit(relax.op.reshape(v, (n,))) for v, n in zip(values, read, strict=True)]
        types = [relax.TensorType((n,), "float32") for n in written]
        made = self.emit(relax.call_tir(name, relax.Tuple(flat), types))
        several = [made] if len(types) == 1 else [
            self.emit(relax.TupleGetItem(made, i)) for i in range(len(types))
        ]  # fmt: skip
        shapes = [(1, n, self.width) for n in positions]
        return [self.emit(relax.op.reshape(v, s)) for v, s in zip(several, shapes, strict=True)]

    def one(self, values: Sequence[relax.Expr], positions: int) -> relax.Var:
        (made,) = self.run(values, positions)
        return made

    def cut(self, value: relax.Expr, first: int, last: int) -> relax.Var:
        return self.emit(relax.op.strided_slice(value, [1], [first], [last]))

    def join(self, *values: relax.Expr) -> relax.Var:
        return self.emit(relax.op.concat([*values], 1))


def drawn(data: st.DataObject) -> Model:
    """A model whose kernels, concatenations and other functions read anything before them."""
    some = st.lists(st.integers(0, 99), min_size=1, max_size=3)

    def make(model: Model, x: relax.Var) -> list[relax.Var]:
        kept = [x]
        for _ in range(data.draw(st.integers(2, 9))):
            read = [kept[i % len(kept)] for i in data.draw(some)]
            kinds = ["kernel", "kernel", "kernel", "join", "join", "cut", "cut", "relu", "flat"]
            match data.draw(st.sampled_from(kinds)):
                case "kernel":
                    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
                    kept += model.run(read, *sizes)
                case "join":
                    kept.append(model.join(*read, kept[-1]))
                case "cut":
                    size = int(read[0].ty.shape.values[1])
                    first = data.draw(st.integers(0, size - 1))
                    last = data.draw(st.integers(first + 1, size))
                    kept.append(model.cut(read[0], first, last))
                    if data.draw(st.booleans()) and last < size:
                        kept.append(model.cut(read[0], last, size))
                case "relu":
                    kept.append(model.emit(relax.op.nn.relu(read[0])))
                case _:
                    size = math.prod(map(int, read[0].ty.shape.values))
                    flat = model.emit(relax.op.reshape(read[0], (1, size)))
                    shape = (1, size // WIDTH, WIDTH)
                    kept.append(model.emit(relax.op.reshape(flat, shape)))
        return [model.one(kept[-3:], 2), *data.draw(st.sampled_from([kept[-1:], []]))]

    return Model(make)
