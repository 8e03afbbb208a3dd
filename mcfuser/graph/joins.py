"""Kernels that write into the arrays of concatenations, in the module that they are put into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relax

from mcfuser.graph.dataflow import dtype, shape
from mcfuser.graph.selection import ChainMatch


@dataclass(frozen=True)
class Joins:
    """The concatenations that kernels write whole, with the `views` between the results of these
    and them, which nothing reads any more, and what holds each one's `arrays` so far."""

    wholes: frozenset[relax.Var]
    views: frozenset[relax.Var]
    arrays: dict[relax.Var, relax.Var] = field(default_factory=dict)

    def written(
        self,
        match: ChainMatch,
        kernel: tvm.ir.GlobalVar,
        arguments: Sequence[relax.Expr],
        variable: type[relax.Var],
    ) -> Iterator[relax.VarBinding]:
        """The call of a kernel that writes the result of a chain into a concatenation's array. The
        result is copied out of it where the concatenation is computed by others, too."""
        joined = match.joined
        assert joined is not None
        kind = relax.TensorType(shape(joined.whole), dtype(joined.whole))
        held, before = variable(f"{joined.whole.name}_so_far", kind), self.arrays.get(joined.whole)
        if before is None:
            call = relax.call_tir(kernel, [*arguments], kind)
        else:
            call = relax.call_tir_inplace(kernel, [*arguments, before], [len(arguments)], kind)
        yield relax.VarBinding(held, call)
        if joined.whole in self.wholes:
            self.arrays[joined.whole] = held
            return
        (result,) = match.outputs.values()
        part = relax.op.strided_slice(held, [joined.axis], [joined.begin], [joined.end])
        yield relax.VarBinding(result, relax.op.reshape(part, shape(result)))


def joins_of(
    main: relax.Function, matches: Sequence[ChainMatch], moved: Collection[relax.Var]
) -> Joins:
    """The concatenations of a function that the kernels for some chains write: those of which there
    is one for every part, which nothing else reads, and whose elements are not `moved` otherwise.
    """
    parts: dict[relax.Var, list[tuple[relax.Var, ...]]] = {}
    for m in matches:
        if m.joined is not None:
            steps = (*m.outputs.values(), *m.joined.views)
            parts.setdefault(m.joined.whole, []).append(steps)
    if not parts:
        return Joins(frozenset(), frozenset())
    values = {b.var: b.value for block in main.body.blocks for b in block.bindings}
    counts = _reads(main, values, matches)
    wholes = frozenset(
        whole
        for whole, made in parts.items()
        if whole not in moved
        and len(made) == len(values[whole].args[0].fields)
        and all(counts[v] == 1 for steps in made for v in steps)
    )
    return Joins(wholes, frozenset(v for w in wholes for _, *views in parts[w] for v in views))


def _reads(
    main: relax.Function, values: Mapping[relax.Var, relax.Expr], matches: Sequence[ChainMatch]
) -> Counter[relax.Var]:
    """How many of the kernels, of the values that none computes and of the function's results read
    each value."""
    inside = {v for m in matches for v in m.bindings}
    left = [value for v, value in values.items() if v not in inside]
    given = [a for m in matches for a in m.arguments.values()]
    every = (main.body.body, *left, *given)
    return Counter(v for e in every for v in relax.analysis.free_vars(e))
