"""Chains derived from a chain: with run-time extents fixed, of some operators, inlined, renamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcfuser.chain.roles import with_precision
from mcfuser.chain.values import Bounds, Chain, renamed, rewritten, sources
from mcfuser.errors import ChainError
from mcfuser.expr import Expr, Index, Read, at


def fixed(chain: Chain, extents: Mapping[str, int]) -> Chain:
    """The chain with the run-time extents fixed to `extents`, by axis.

    Raises ChainError where one is missing or outside its bounds.
    """
    axes = []
    for axis in chain.axes:
        extent = axis.extent
        if isinstance(extent, Bounds):
            value = extents.get(axis.name)
            if value is None or not extent.low <= value <= extent.high:
                raise ChainError(
                    f"axis '{axis.name}' needs an extent from {extent.low} to {extent.high}, "
                    f"not {value}"
                )
            extent = value
        axes.append(replace(axis, extent=extent))
    return replace(chain, axes=tuple(axes))


def run_time(chain: Chain) -> dict[str, Bounds]:
    """The bounds of the extents that are known only at run time, by axis."""
    return {a.name: a.extent for a in chain.axes if isinstance(a.extent, Bounds)}


def under_names(chain: Chain, name: str, axes: Sequence[str], tensors: Sequence[str]) -> Chain:
    """The chain under another name, with other names of its axes and its tensors, in its order.

    Raises ChainError where there are more or fewer of them, or a chain cannot have such names.
    """
    if len(axes) != len(chain.axes) or len(tensors) != len(chain.tensors):
        raise ChainError(
            f"chain '{chain.name}' has {len(chain.axes)} axes and {len(chain.tensors)} tensors, "
            f"and names are given for {len(axes)} and {len(tensors)}"
        )
    letters = {a.name: new for a, new in zip(chain.axes, axes, strict=True)}
    names = {t.name: new for t, new in zip(chain.tensors, tensors, strict=True)}
    shapes = (
        tuple(letters[d] if isinstance(d, str) else d for d in t.shape) for t in chain.tensors
    )
    return replace(
        chain,
        name=name,
        axes=tuple(replace(a, name=letters[a.name]) for a in chain.axes),
        tensors=tuple(
            replace(t, name=names[t.name], shape=shape)
            for t, shape in zip(chain.tensors, shapes, strict=True)
        ),
        operators=tuple(renamed(o, names, letters) for o in chain.operators),
        outputs=tuple(names[o] for o in chain.outputs),
    )


def subchain(chain: Chain, outs: Sequence[str], name: str) -> Chain:
    """The chain of the operators that compute `outs`.

    What they read and do not compute is its input; what other operators read of them, and the
    chain's own outputs, are its outputs. Without products it has no precision of its own, as the
    same operators have none elsewhere.
    """
    operators = tuple(o for o in chain.operators if o.out in outs)
    read_names = {r.tensor for o in operators for r in sources(o)}
    later = {r.tensor for o in chain.operators if o.out not in outs for r in sources(o)}
    produced = tuple(o.out for o in operators if o.out in later or o.out in chain.outputs)
    used_axes = {a for o in operators for a in o.related}
    kept = tuple(
        t for t in chain.tensors if t.name in read_names or any(t.name == o.out for o in operators)
    )
    used_axes |= {d for t in kept for d in t.shape if isinstance(d, str)}
    letters = tuple(a for a in chain.axes if a.name in used_axes)
    return with_precision(Chain(name, letters, kept, operators, produced), chain.precision)


def fresh(chain: Chain, name: str) -> str:
    """A tensor name that the chain does not have: `name`, with underscores added if need be."""
    taken = {t.name for t in chain.tensors}
    while name in taken:
        name += "_"
    return name


def inline(chain: Chain, out: str) -> Chain:
    """The chain without the map `out`, which is written into the bodies that read it.

    Raises ChainError where the operator is no map without a domain, or computes an output.
    """
    gone = chain.operator(out)
    if gone.reduce != "none" or gone.domain is not None or out in chain.outputs:
        raise ChainError(f"operator '{out}' is not a map between operators and cannot be inlined")

    def leaf(node: Read | Index) -> Expr:
        if not isinstance(node, Read) or node.tensor != out:
            return node
        return at(gone.body, dict(zip(gone.axes, node.indices, strict=True)))

    operators = tuple(rewritten(o, leaf) for o in chain.operators if o.out != out)
    tensors = tuple(t for t in chain.tensors if t.name != out)
    return replace(chain, operators=operators, tensors=tensors)


def without_dead(chain: Chain) -> Chain:
    """The chain without the operators whose results are neither read nor outputs."""
    used = {r.tensor for o in chain.operators for r in sources(o)} | set(chain.outputs)
    dead = {o.out for o in chain.operators if o.out not in used}
    if not dead:
        return chain
    operators = tuple(o for o in chain.operators if o.out not in dead)
    tensors = tuple(t for t in chain.tensors if t.name not in dead)
    return without_dead(replace(chain, operators=operators, tensors=tensors))
