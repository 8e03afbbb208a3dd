"""Concatenations and slices in place: kernels are given the array that their tensors lie in, and
write and read them at offsets of its address (`mcfuser.codegen.cuda.places`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, s_tir, tirx

from mcfuser.chain import BYTES
from mcfuser.codegen.bindings import with_bindings
from mcfuser.codegen.cuda.places import (
    ArrayPlace,
    ArrayPlaces,
    ValueFlow,
    axis_of,
    extents,
    kernels_of,
    places,
    value_flow,
    within,
)
from mcfuser.codegen.cuda.root import with_root

ArrayKind = tuple[tuple[int, ...], str]
"""The extents and the dtype of an array."""


def beside(module: tvm.IRModule) -> tvm.IRModule:
    """The module whose kernels write the parts of concatenations where these lie, wherever less is
    copied then, and read slices where they are. TVM has not scheduled what is no kernel."""
    kernels = kernels_of(module)
    builder, changed = relax.BlockBuilder(module), False
    for name, function in module.functions_items():
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            flow = value_flow(function, kernels)
            writer = _Writer(builder, flow, places(flow))
            if any(map(writer.touches, flow.values)):
                builder.update_func(name, writer.function(function))
                changed = True
    passes = [relax.transform.Normalize(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(passes)(builder.get()) if changed else module


@dataclass
class _Writer:
    """Rewrites a function whose values have places. `arrays` has the value that holds each
    concatenation so far, `kernels` those that find tensors in arrays, `done` where copies are."""

    builder: relax.BlockBuilder
    flow: ValueFlow
    found: ArrayPlaces
    arrays: dict[relax.Var, relax.Var] = field(default_factory=dict)
    kernels: dict[object, tvm.ir.GlobalVar] = field(default_factory=dict)
    done: set[ArrayPlace] = field(default_factory=set)

    def function(self, function: relax.Function) -> relax.Function:
        """The function whose kernels write in place."""
        return with_bindings(
            function, lambda block: (made for b in block.bindings for made in self.bindings(b))
        )

    def bindings(self, binding: relax.Binding) -> Iterator[relax.Binding]:
        """What stands in the place of a binding."""
        var, made = binding.var, self.flow.values[binding.var]
        if self.touches(var):
            yield from self.call(var, made)
        elif var in self.found.lying and var in self.flow.joined:
            yield from self.joined(var, self.found.lying[var])
        elif isinstance(made, relax.TupleGetItem) and self.touches(made.tuple_value):
            pass  # bound behind the call
        elif self.there(self.flow.origin(var).whole):
            yield binding

    def there(self, value: Any) -> bool:
        """Whether a value is one of its own, and does not lie in another's array alone."""
        at = self.found.lying.get(value)
        return at is None or at.whole.same_as(value) or value in self.found.sliced

    def within(self, value: Any) -> ArrayPlace | None:
        """Where a tensor lies in an array as a part of it, or as a slice of its own origin."""
        origin = self.flow.origin(value)
        at = within(self.found.lying, origin)
        if at is not None and not at.whole.same_as(origin.whole):
            return at
        return origin if self.flow.cut(value) and isinstance(origin.whole, relax.Var) else None

    def touches(self, value: relax.Var) -> bool:
        """Whether a value is what a kernel's call gives that reads or writes parts of arrays."""
        if not self.flow.launches(value):
            return False
        tensors = [*self.flow.values[value].args[1].fields, *self.flow.results(value)]
        return any(self.within(t) is not None for t in tensors)

    def call(self, var: relax.Var, call: relax.Call) -> Iterator[relax.VarBinding]:
        """A kernel's call with the arrays that its tensors lie in, and with its other tensors."""
        given, results = call.args[1].fields, self.flow.results(var)
        read, written = [*map(self.within, given)], [*map(self.within, results)]
        wholes = list(dict.fromkeys(at.whole for at in [*read, *written] if at is not None))
        for whole in wholes:
            yield from self.allocated(whole)
        held = [self.arrays.get(w, w) for w in wholes]
        held += [v for v, at in zip(given, read, strict=True) if at is None]
        kernel = self.kernel(call.args[0], [*read, *written], wholes)
        changed = [i for i, w in enumerate(wholes) if any(at and at.whole == w for at in written)]
        types, named = list[Any](), list[relax.Var | None]()
        for i in changed:
            types.append(wholes[i].ty)
            named.append(self.renewed(wholes[i]))
        for result, kind, at in zip(results, _types(call), written, strict=True):
            if at is None:
                types.append(kind)
                named.append(result)
        if changed:
            indices = [*changed, *[-1] * (len(types) - len(changed))]
            again = relax.call_tir_inplace(kernel, relax.Tuple(held), indices, types)
        else:
            again = relax.call_tir(kernel, relax.Tuple(held), types)
        yield from _bound(again, named, types)
        for result, at in zip(results, written, strict=True):
            if at is not None and result in self.found.sliced:
                yield self.sliced(result, at)

    def renewed(self, whole: relax.Var) -> relax.Var:
        """The variable of an array after the next call."""
        self.arrays[whole] = relax.Var(f"{whole.name}_so_far", whole.ty)
        return self.arrays[whole]

    def allocated(self, whole: relax.Var) -> Iterator[relax.VarBinding]:
        """The binding of a concatenation's array to which nothing has been written."""
        if whole in self.found.lying and whole not in self.arrays:
            shape = relax.ShapeExpr(extents(whole))
            made = relax.op.builtin.alloc_tensor(shape, str(whole.ty.dtype), 0)
            yield relax.VarBinding(self.renewed(whole), made)

    def joined(self, var: relax.Var, at: ArrayPlace) -> Iterator[relax.VarBinding]:
        """What remains of a concatenation: copies of its parts that no kernel writes."""
        for part in self.flow.joined[var]:
            place = ArrayPlace(at.whole, at.start + part.start)
            copied = self.found.copy(self.flow, part, place)
            if copied is not None and place not in self.done:
                self.done.add(place)
                yield from self.allocated(at.whole)
                copy = self.builder.add_func(self.copy(copied, place), "copy_beside")
                seen = part.value
                if extents(seen) != (shape := extents(copied)):
                    seen = relax.Var(f"{var.name}_part", relax.TensorType(shape, str(var.ty.dtype)))
                    yield relax.VarBinding(seen, relax.op.reshape(part.value, shape))
                held = [self.arrays[at.whole], seen]
                made = relax.call_tir_inplace(copy, held, [0], at.whole.ty)
                yield relax.VarBinding(self.renewed(at.whole), made)
        if var.same_as(at.whole):
            yield relax.VarBinding(var, self.arrays[var])
        elif var in self.found.sliced:
            yield self.sliced(var, at)

    def sliced(self, value: relax.Var, at: ArrayPlace) -> relax.VarBinding:
        """The binding of a value to a copy of a part of an array."""
        flat = relax.op.reshape(self.arrays[at.whole], (math.prod(extents(at.whole)),))
        end = at.start + math.prod(extents(value))
        part = relax.op.strided_slice(flat, [0], [at.start], [end])
        return relax.VarBinding(value, relax.op.reshape(part, extents(value)))

    def kernel(
        self, name: tvm.ir.GlobalVar, at: Sequence[ArrayPlace | None], wholes: Sequence[relax.Var]
    ) -> tvm.ir.GlobalVar:
        """The kernel that takes arrays in the place of the tensors that lie there."""
        arrays = tuple((extents(w), str(w.ty.dtype)) for w in wholes)
        lie = tuple(None if p is None else (wholes.index(p.whole), p.start) for p in at)
        key = (name.name_hint, arrays, lie)
        if key not in self.kernels:
            made = within_arrays(self.flow.kernels[name], arrays, lie)
            self.kernels[key] = self.builder.add_func(made, f"{name.name_hint}_beside")
        return self.kernels[key]

    def copy(self, part: relax.Expr, at: ArrayPlace) -> tirx.PrimFunc:
        """The function that copies a part of a concatenation to its place."""
        axis = axis_of(self.flow.values[at.whole])
        first = at.start // math.prod(extents(part)[axis + 1 :])
        return copying((extents(at.whole), str(at.whole.ty.dtype)), extents(part), axis, first)


def _types(call: relax.Call) -> list[Any]:
    (kind,) = call.ty_args
    return list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]


def _bound(
    call: relax.Call, results: Sequence[relax.Var | None], types: Sequence[Any]
) -> Iterator[relax.VarBinding]:
    """The bindings of a call's results, as far as they have names."""
    if len(results) == 1:
        yield relax.VarBinding(results[0], call)
        return
    several = relax.Var("several", relax.TupleType(types))
    yield relax.VarBinding(several, call)
    for i, result in enumerate(results):
        if result is not None:
            yield relax.VarBinding(result, relax.TupleGetItem(several, i))


def within_arrays(
    kernel: tirx.PrimFunc, arrays: Sequence[ArrayKind], lie: Sequence[tuple[int, int] | None]
) -> tirx.PrimFunc:
    """A kernel that takes `arrays`, then those of its tensors that do not `lie` in one: those that
    do have the array's number, and the element of it at which they begin."""
    kernel = s_tir.renew_defs(kernel)
    given = [tirx.decl_buffer(e, dtype, f"array{i}") for i, (e, dtype) in enumerate(arrays)]
    declared, others = list[tirx.Stmt](), list[tvm.ir.Var]()
    for tensor, at in zip(kernel.params, lie, strict=True):
        if at is None:
            others.append(tensor)
        else:
            offset = at[1] * BYTES[arrays[at[0]][1]]
            data = tirx.handle_add_byte_offset(given[at[0]].data, offset)
            declared.append(tirx.DeclBuffer(tensor, data=data))
    root = kernel.body.block
    return with_root(kernel, [*given, *others], [*declared, root.body], root.alloc_buffers)


def copying(array: ArrayKind, part: Sequence[int], axis: int, first: int) -> tirx.PrimFunc:
    """A function that copies a tensor of the extents `part` into an array, where it begins at the
    position `first` along an axis."""
    loops = ", ".join(f"i{d}" for d in range(len(part)))
    read = [f"v{d}" for d in range(len(part))]
    written = [f"{v} + {first}" if d == axis else v for d, v in enumerate(read)]
    lines = [
        "@T.prim_func(s_tir=True, private=True)",
        f"def copy(array: T.Buffer({array[0]}, {array[1]!r}), "
        f"part: T.Buffer({tuple(part)}, {array[1]!r})):",
        '    T.func_attr({"tirx.noalias": True, "op_pattern": 8})',
        f"    for {loops} in T.grid({', '.join(map(str, part))}):",
        '        with T.sblock("copy"):',
        f"            {', '.join(read)} = T.axis.remap({'S' * len(part)!r}, [{loops}])",
        f"            array[{', '.join(written)}] = part[{', '.join(read)}]",
    ]
    return tvm.script.from_source("\n".join(lines))
