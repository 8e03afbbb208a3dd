"""A chain as the plainest PrimFunc: one loop nest an operator, every intermediate in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import te, tirx

from mcfuser.chain import LOWEST, NO_STARTS, Chain, Operator, digits, strides_of
from mcfuser.expr import Call, Cast, Const, Expr, Index, Read

_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "max": tirx.max, "min": tirx.min, "pow": tirx.power,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "eq": lambda a, b: tirx.EQ(a, b),
    "ne": lambda a, b: tirx.NE(a, b), "and": tirx.all, "or": tirx.any,
    "shift_right": lambda a, b: _whole(a) >> _whole(b),
    "bit_and": lambda a, b: _whole(a) & _whole(b),
}  # fmt: skip
_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "neg": lambda a: -a, "abs": tirx.abs, "exp": tirx.exp, "log": tirx.log, "sqrt": tirx.sqrt,
    "tanh": tirx.tanh, "erf": tirx.erf, "floor": tirx.floor, "round": tirx.nearbyint,
    "not": tirx.Not,
}  # fmt: skip


def _whole(a: Any) -> Any:
    return tirx.Cast("int32", a)


def primfunc(
    chain: Chain, shapes: Mapping[str, tuple[int, ...]], starts: Mapping[str, int] = NO_STARTS
) -> tirx.PrimFunc:
    """The chain over buffers of these physical shapes, of which its arrays begin at the elements
    `starts`; others are dense in the chain's own."""
    chain = replace(chain, tensors=tuple(
        replace(t, offset=t.offset + starts.get(t.name, 0)) for t in chain.tensors
    ))  # fmt: skip
    tensors = {t: _placeholder(chain, t, shapes) for t in chain.inputs}
    for operator in chain.operators:
        tensors[operator.out] = _compute(chain, operator, tensors)
    outs = [_laid_out(chain, t, tensors[t], shapes) for t in chain.outputs]
    return te.create_prim_func([*(tensors[t] for t in chain.inputs), *outs])


def _placeholder(chain: Chain, name: str, shapes: Mapping[str, tuple[int, ...]]) -> te.Tensor:
    return te.placeholder(
        shapes.get(name, chain.shape(name)), chain.tensor(name).dtype, name=f"{name}_in"
    )


def _compute(chain: Chain, o: Operator, tensors: Mapping[str, te.Tensor]) -> te.Tensor:
    over = {a: te.reduce_axis((0, chain.size(a)), a) for a in o.over}
    at_over = {a: v.var for a, v in over.items()}

    def body(*at: Any) -> Any:
        axes = dict(zip(o.axes, at, strict=True)) | at_over
        value = _value(chain, o.body, axes, tensors)
        if o.domain is not None:
            outside = tirx.const(LOWEST if o.reduce == "max" else 0.0, "float32")
            value = tirx.if_then_else(_value(chain, o.domain, axes, tensors), value, outside)
        if o.reduce == "none":
            return value
        return (te.sum if o.reduce == "sum" else te.max)(value, axis=list(over.values()))

    return te.compute(chain.shape(o.out), body, name=o.out)


def _value(chain: Chain, e: Expr, axes: Mapping[str, Any], tensors: Mapping[str, te.Tensor]) -> Any:
    if isinstance(e, Const):
        return tirx.const(e.value, "bool" if isinstance(e.value, bool) else "float32")
    if isinstance(e, Index):
        return axes[e.axis].astype("float32")
    if isinstance(e, Cast):
        return _value(chain, e.arg, axes, tensors).astype(e.dtype).astype("float32")
    if isinstance(e, Read):
        at = [sum((c * axes[a] for a, c in i.terms), i.offset) for i in e.indices]
        source = tensors[e.tensor]
        value = _element(chain, e.tensor, source, at)
        return value if str(source.dtype) == "bool" else value.astype("float32")
    assert isinstance(e, Call)
    args = [_value(chain, a, axes, tensors) for a in e.args]
    if e.op == "select":
        return tirx.if_then_else(*args)
    return _BINARY[e.op](*args) if len(args) == 2 else _UNARY[e.op](*args)


def _element(chain: Chain, name: str, tensor: te.Tensor, at: Sequence[Any]) -> Any:
    if name not in chain.inputs:
        return tensor[tuple(at)]
    declared = chain.tensor(name)
    strides = declared.strides or _dense(chain.shape(name))
    position: Any = declared.offset
    along: list[Any] = [-p.before for p in declared.padding]
    for i, stride in zip(at, strides, strict=True):
        if isinstance(stride, int):
            position += i * stride
        else:
            (digit,) = stride
            along[digit.padding] += i * (digit.stride // declared.padding[digit.padding].stride)
    inside = []
    for here, p in zip(along, declared.padding, strict=True):
        position += here * p.stride
        inside += [here >= 0, here < p.extent]
    units = _dense([int(d) for d in tensor.shape])
    found = tensor[tuple(position // u % int(d) for u, d in zip(units, tensor.shape, strict=True))]
    if not inside:
        return found
    outside = tirx.const(declared.padding[0].value, declared.dtype)
    return tirx.if_then_else(tirx.all(*inside), found, outside)


def _laid_out(
    chain: Chain, name: str, tensor: te.Tensor, shapes: Mapping[str, tuple[int, ...]]
) -> te.Tensor:
    """The output where it belongs: the element at a position is found by the strides. What has
    fewer elements than its array leaves the others as they are."""
    declared, extents = chain.tensor(name), chain.shape(name)
    physical = shapes.get(name, extents)
    if math.prod(extents) < math.prod(physical):
        return _scattered(chain, name, tensor, physical)
    strides = declared.strides or _dense(extents)

    def element(*at: Any) -> Any:
        position = sum(i * u for i, u in zip(at, _dense(physical), strict=True))
        indices = (position // s % e for s, e in zip(strides, extents, strict=True))
        return tensor[tuple(indices)].astype(declared.dtype)

    return te.compute(physical, element, name=f"{name}_out")


def _scattered(chain: Chain, name: str, tensor: te.Tensor, physical: tuple[int, ...]) -> te.Tensor:
    """The output in an array that has other elements, too."""
    declared, extents = chain.tensor(name), chain.shape(name)

    def body(ins: Any, outs: Any) -> Any:
        at = [tirx.Var(f"i{d}", "int32") for d in range(len(extents))]
        position: Any = declared.offset
        for i, stride, extent in zip(at, strides_of(chain, name), extents, strict=True):
            step = extent
            for d in digits(stride, extent):
                step //= d.extent
                position = position + i // step % d.extent * d.stride
        whole = zip(_dense(physical), physical, strict=True)
        value = tirx.Cast(declared.dtype, tirx.BufferLoad(ins[0], at))
        stmt: Any = tirx.BufferStore(outs[0], value, [position // s % e for s, e in whole])
        for i, extent in zip(reversed(at), reversed(extents), strict=True):
            stmt = tirx.For(i, 0, extent, tirx.ForKind.SERIAL, stmt)
        return stmt

    return te.extern([physical], [tensor], body, f"{name}_out", dtype=declared.dtype)


def _dense(extents: Sequence[int]) -> list[int]:
    return [math.prod(extents[i + 1 :]) for i in range(len(extents))]
