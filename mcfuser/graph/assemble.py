"""Kernels back into the module they were cut out of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from mcfuser.chain import Chain
from mcfuser.errors import ChainError
from mcfuser.graph.dataflow import dtype, shape, with_blocks
from mcfuser.graph.joins import Joins, joins_of
from mcfuser.graph.layout import (
    from_last,
    moved_as_stored,
    moved_from,
    rows_of,
    stored_shape,
    to_last,
)
from mcfuser.graph.selection import ChainMatch
from mcfuser.graph.tensors import tensor_over


@dataclass(frozen=True, slots=True)
class Installed:
    """One kernel, which computes one chain or a part of it.

    `func` takes the chain's inputs, then `counters`, then its outputs, in the chain's order.
    `packed` holds the constant inputs that it wants in another layout; `counters` are arrays that
    it leaves as it finds them.
    """

    name: str
    chain: Chain
    func: tirx.PrimFunc
    packed: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    counters: tuple[NDArray[np.generic], ...] = ()


@dataclass(frozen=True, slots=True)
class Replacement:
    """The kernels that compute a chain, in the order in which they run.

    They pass the chain's tensors to each other by name; what is neither an input nor an output
    of the whole chain is dense and row-major.
    """

    match: ChainMatch
    kernels: tuple[Installed, ...]


def install(module: tvm.IRModule, replacements: Sequence[Replacement]) -> tvm.IRModule:
    """The module that calls the kernels where it computed their chains.

    Raises ChainError where a kernel reads a tensor that nothing before it writes.
    """
    kernels = [k for r in replacements for k in r.kernels]
    builder = relax.BlockBuilder(tvm.IRModule(dict(module.functions), attrs=module.attrs))
    names = {
        at: builder.add_func(_scheduled(k.func), k.name)
        for at, k in {id(k.func): k for k in kernels}.items()
    }
    calls = {r.match.bindings[-1]: r for r in replacements}
    installed = builder.get()
    main = installed["main"]
    moved = _moved(main, replacements)
    joins = joins_of(main, [r.match for r in replacements], moved)
    drop = _dropped(main, replacements) | joins.views
    blocks, stored = [], dict[relax.Var, relax.Var]()
    for block in main.body.blocks:
        inside = isinstance(block, relax.DataflowBlock)
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            if binding.var in calls:
                bindings += _bindings(calls[binding.var], names, inside, stored, joins)
            elif binding.var in joins.wholes:
                bindings.append(relax.VarBinding(binding.var, joins.arrays[binding.var]))
            elif binding.var not in drop:
                bindings.append(binding)
                if binding.var in moved:
                    bindings += _moved_bindings(binding, stored)
                elif (rows := rows_of(binding.value)) is not None:
                    stored[binding.var] = rows
        blocks.append(type(block)(bindings))
    installed.update_func(installed.get_global_var("main"), with_blocks(main, blocks))
    installed = relax.transform.Normalize()(installed)
    installed = relax.transform.DeadCodeElimination(["main"])(installed)
    relax.analysis.well_formed(installed)
    return installed


def _dropped(main: relax.Function, replacements: Sequence[Replacement]) -> set[relax.Var]:
    """The values that kernels compute, or that nothing reads once these are installed.

    A chain may read through views that are inside another chain. Where only that other one becomes
    a kernel, the views stay, for TVM computes the first.
    """
    inside = {v: r for r in replacements for v in r.match.bindings}
    results = {v for r in replacements for v in r.match.outputs.values()}
    dropped, read = set(results), set(relax.analysis.free_vars(main.body.body))
    for block in reversed(main.body.blocks):
        for binding in reversed(block.bindings):
            var = binding.var
            if var in inside and var == inside[var].match.bindings[-1]:
                for value in inside[var].match.arguments.values():
                    read.update(relax.analysis.free_vars(value))
            if var in dropped or (var in inside and var not in read):
                dropped.add(var)
            else:
                read.update(relax.analysis.free_vars(binding.value))
    return dropped


def _moved(main: relax.Function, replacements: Sequence[Replacement]) -> set[relax.Var]:
    """The values that no kernel computes, of which kernels read the channels last, and which only
    move elements: of values that are then wanted so, too."""
    made = {v for r in replacements for v in r.match.bindings}
    wanted = {
        r.match.arguments[t]
        for r in replacements
        for t in r.match.channels_last & r.match.arguments.keys()
    }
    moved = set[relax.Var]()
    for block in reversed(main.body.blocks):
        for binding in reversed(block.bindings):
            var = binding.var
            if var in wanted and var not in made and (parts := moved_from(binding.value)):
                moved.add(var)
                wanted.update(parts)
    return moved


def _moved_bindings(
    binding: relax.VarBinding, stored: dict[relax.Var, relax.Var]
) -> Iterator[relax.VarBinding]:
    """Bindings that move elements of what holds values with their channels last."""
    parts = moved_from(binding.value)
    for part in parts:
        yield from _turned(part, stored)
    stored[binding.var] = _last(binding.var)
    moved = moved_as_stored(binding.value, [stored[part] for part in parts])
    yield relax.VarBinding(stored[binding.var], moved)


def _scheduled(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Marked so that no pass merges it with another or gives it a schedule (8: opaque)."""
    marked = function.with_attrs({"tirx.is_scheduled": True, "op_pattern": 8})
    return marked.without_attr("global_symbol")


def _bindings(
    replacement: Replacement,
    names: Mapping[int, tvm.ir.GlobalVar],
    inside: bool,
    stored: dict[relax.Var, relax.Var],
    joins: Joins,
) -> Iterator[relax.VarBinding]:
    """The bindings of a chain's values to what its kernels compute; `stored` has what holds values
    with their channels last, so far, and `joins` what holds concatenations."""
    match = replacement.match
    yield from _turned_arguments(match, stored)
    values: dict[str, relax.Expr] = {
        t: stored[a] if t in match.channels_last else a for t, a in match.arguments.items()
    }
    values |= {name: relax.const(tensor_over(array)) for name, array in match.constants.items()}
    variable = relax.DataflowVar if inside else relax.Var
    for kernel in replacement.kernels:
        packed = {name: relax.const(tensor_over(array)) for name, array in kernel.packed.items()}
        arguments = [
            _argument(kernel, packed.get(t, values.get(t)), t) for t in kernel.chain.inputs
        ]
        arguments += [relax.const(array) for array in kernel.counters]
        types = [_type(match, kernel.chain, t) for t in kernel.chain.outputs]
        if match.joined is not None and not match.outputs.keys().isdisjoint(kernel.chain.outputs):
            yield from joins.written(match, names[id(kernel.func)], arguments, variable)
            values |= match.outputs
            continue
        call = relax.call_tir(names[id(kernel.func)], arguments, types)
        results = dict[str, relax.Var]()
        for t, kind in zip(kernel.chain.outputs, types, strict=True):
            if t not in match.outputs:
                results[t] = variable(f"{kernel.name}_{t}", kind)
            elif t in match.channels_last:
                results[t] = stored[match.outputs[t]] = _last(match.outputs[t])
            else:
                results[t] = match.outputs[t]
        values |= results
        if len(types) == 1:
            yield relax.VarBinding(*results.values(), call)
        else:
            several = variable(kernel.name, relax.TupleType(types))
            yield relax.VarBinding(several, call)
            for i, var in enumerate(results.values()):
                yield relax.VarBinding(var, relax.TupleGetItem(several, i))
        for t in sorted(match.channels_last & results.keys()):
            value = match.outputs[t]
            turned = relax.op.permute_dims(results[t], list(from_last(len(shape(value)))))
            yield relax.VarBinding(value, turned)
    missing = [t for t in match.outputs if t not in values]
    if missing:
        raise ChainError(f"no kernel of chain '{match.chain.name}' writes '{missing[0]}'")


def _turned_arguments(
    match: ChainMatch, stored: dict[relax.Var, relax.Var]
) -> Iterator[relax.VarBinding]:
    """Bindings that put what a chain reads with its channels last into memory so, where no kernel
    has written it so."""
    for t in sorted(match.channels_last & match.arguments.keys()):
        yield from _turned(match.arguments[t], stored)


def _turned(value: relax.Var, stored: dict[relax.Var, relax.Var]) -> Iterator[relax.VarBinding]:
    """The binding that puts a value into memory with its channels last, unless one has done so."""
    if value not in stored:
        stored[value] = _last(value)
        turned = relax.op.permute_dims(value, list(to_last(len(shape(value)))))
        yield relax.VarBinding(stored[value], turned)


def _last(value: relax.Var) -> relax.Var:
    """A variable for what holds a value with its channels last, known where the value is."""
    kind = relax.TensorType(stored_shape(shape(value)), dtype(value))
    return type(value)(f"{value.name}_last", kind)


def _argument(kernel: Installed, value: relax.Expr | None, tensor: str) -> relax.Expr:
    if value is None:
        raise ChainError(f"kernel '{kernel.name}' reads '{tensor}', which nothing before it writes")
    return value


def _type(match: ChainMatch, chain: Chain, tensor: str) -> relax.TensorType:
    shape = match.shapes[tensor] if tensor in match.outputs else chain.shape(tensor)
    return relax.TensorType(shape, chain.tensor(tensor).dtype)
