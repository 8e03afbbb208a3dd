"""Rewrites what exporters spell out to one operator: softmax, layer normalization, squares."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tvm
from tvm import relax
from tvm.relax.dpl import DFPattern, is_op, rewrite_call, wildcard

from mcfuser.graph.assigned import assigned_slices
from mcfuser.graph.common import large_apart
from mcfuser.graph.convolution import convolutions, transposed_convolutions
from mcfuser.graph.dataflow import array, extents
from mcfuser.graph.groups import norms_of_groups
from mcfuser.graph.halves import halves_apart
from mcfuser.graph.matching import called
from mcfuser.graph.pooling import poolings

_Matches = Mapping[DFPattern, relax.Expr]
_Rewriter = Callable[[relax.Call, _Matches], relax.Expr]


def rewrite_idioms(module: tvm.IRModule) -> tvm.IRModule:
    """The module with the idioms of its functions rewritten."""
    rewritten = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    for name, function in module.functions.items():
        if isinstance(function, relax.Function):
            for rewrite in _REWRITES:
                function = rewrite(function)
            rewritten.update_func(name, function)
    return rewritten


def _powers(function: relax.Function) -> relax.Function:
    """Writes x ** 2 as a product and x ** 0.5 as a root: the general power is much slower."""
    x, exponent = wildcard(), wildcard()
    pattern = is_op("relax.power")(x, exponent)

    def rewriter(call: relax.Call, matches: _Matches) -> relax.Expr:
        value = _number(matches[exponent])
        if value == 2:
            return relax.op.multiply(matches[x], matches[x])
        return relax.op.sqrt(matches[x]) if value == 0.5 else call

    return _matched(function, "relax.power", pattern, rewriter)


def _softmax(function: relax.Function) -> relax.Function:
    x = wildcard()
    highest = is_op("relax.max")(x)
    exponential = is_op("relax.exp")(is_op("relax.subtract")(x, highest))
    total = is_op("relax.sum")(exponential)
    pattern = is_op("relax.divide")(exponential, total)

    def rewriter(call: relax.Call, matches: _Matches) -> relax.Expr:
        axes = [_kept_axis(matches[p]) for p in (highest, total)]
        if axes[0] is None or axes[0] != axes[1]:
            return call
        return relax.op.nn.softmax(matches[x], axes[0])

    return _matched(function, "relax.max", pattern, rewriter)


def _layer_norm(function: relax.Function) -> relax.Function:
    x, small, scale, shift = (wildcard() for _ in range(4))
    mean = is_op("relax.mean")(x)
    centred = is_op("relax.subtract")(x, mean)
    variance = is_op("relax.mean")(is_op("relax.multiply")(centred, centred))
    deviation = is_op("relax.sqrt")(_sum(variance, small))
    normal = is_op("relax.divide")(centred, deviation)
    scaled = is_op("relax.multiply")(normal, scale) | is_op("relax.multiply")(scale, normal)
    pattern = is_op("relax.add")(scaled, shift) | is_op("relax.add")(shift, scaled)

    def rewriter(call: relax.Call, matches: _Matches) -> relax.Expr:
        axes = [_kept_axis(matches[p]) for p in (mean, variance)]
        epsilon = _number(matches[small])
        shape = extents(call)
        if shape is None or epsilon is None or axes != [len(shape) - 1] * 2:
            return call
        if extents(matches[x]) != shape:
            return call
        weights = [_row(matches[p], shape[-1]) for p in (scale, shift)]
        if any(w is None for w in weights):
            return call
        return relax.op.nn.layer_norm(matches[x], *weights, axes=[-1], epsilon=epsilon)

    return _matched(function, "relax.mean", pattern, rewriter)


def _matched(
    function: relax.Function, operator: str, pattern: DFPattern, rewriter: _Rewriter
) -> relax.Function:
    """The function with every match of a pattern, of which `operator` is a part, rewritten.

    TVM walks the whole function, which takes a second where it has 20,000 values: a function that
    does not call the operator is left. Where there are matches, TVM compares all expressions with
    each other: that took 4 s with the 1.3 GB of constants of a diffusion model.
    """
    if not any(name == operator for name in called(function.body)):
        return function
    return large_apart(function, lambda f: rewrite_call(pattern, rewriter, f))


def _sum(one: DFPattern, other: DFPattern) -> DFPattern:
    return is_op("relax.add")(one, other) | is_op("relax.add")(other, one)


def _kept_axis(call: relax.Expr) -> int | None:
    """The axis of a reduction over one axis that stays with extent 1; None for any other call."""
    axes = call.attrs.axis
    if axes is None or len(axes) != 1 or not call.attrs.keepdims:
        return None
    return int(axes[0]) % int(call.args[0].ty.ndim)


def _number(value: relax.Expr) -> float | None:
    constant = array(value)
    return float(constant.reshape(-1)[0]) if constant is not None and constant.size == 1 else None


def _row(value: relax.Expr, extent: int) -> relax.Expr | None:
    """A constant as a vector of `extent` elements along the last axis; None if it is no such
    constant."""
    constant = array(value)
    if (
        constant is None
        or constant.size not in (1, extent)
        or constant.shape[-1:] not in ((), (1,), (extent,))
    ):
        return None
    return relax.const(np.ascontiguousarray(np.broadcast_to(constant.reshape(-1), (extent,))))


_REWRITES = (
    _powers,
    assigned_slices,
    halves_apart,
    norms_of_groups,
    _softmax,
    _layer_norm,
    transposed_convolutions,
    convolutions,
    poolings,
)
"""In their order: a transposed convolution becomes a convolution, which is rewritten itself."""
