"""Outputs that are written into the memory of inputs: the caches of a decoding step.

A model whose cache has room for all positions returns it with those of the new tokens replaced. A
module that is asked to do this in place changes the cache that it is given and returns it: nothing
is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from mcfuser.errors import ModelError
from mcfuser.graph.dataflow import BIJECTIVE, Dataflow, dataflow, dtype, shape, with_blocks
from mcfuser.graph.matching import with_arguments
from mcfuser.graph.replaced import replacing
from mcfuser.graph.views import permutation

REPLACING = ("relax.where", "relax.scatter_nd", "relax.scatter_elements")
"""Operators that replace some elements of an operand."""
SHOWN = 20
"""Names of inputs or outputs that a message lists."""


@dataclass(frozen=True, slots=True)
class CacheUpdate:
    """The value `update`, computed by one of REPLACING from a `cache`, a parameter of the function,
    and returned as `result`. `views` lead from the cache to the operand at `position`, which is
    updated."""

    cache: relax.Var
    update: relax.Var
    result: relax.Var
    position: int
    views: tuple[relax.Var, ...]


def paired(
    pairs: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str]
) -> dict[str, str]:
    """The pairs with every input and output that a `*` stands for: of `past.*=present.*` one for
    each input that begins so, with the output whose name goes on as its own. Raises ModelError
    where there is no such input, or no such output of one."""
    found: dict[str, str] = {}
    for name, output in pairs.items():
        if name in inputs or "*" not in name + output:
            found[name] = output
            continue
        words = f"outputs '{output}' cannot be written into inputs '{name}'"
        if name.count("*") != 1 or output.count("*") != 1:
            raise ModelError(f"{words}: each has one '*', which stands for the same in both")
        (first, last), (begin, end) = name.split("*"), output.split("*")
        some = [
            n for n in inputs
            if n.startswith(first) and n.endswith(last) and len(n) >= len(first) + len(last)
        ]  # fmt: skip
        if not some:
            raise ModelError(f"{words}: the model has no such input; it has {_some(inputs)}")
        for one in some:
            found[one] = begin + one[len(first) : len(one) - len(last)] + end
            _place(outputs, found[one], f"{words}: for '{one}'", "output")
    return found


def updated_in_place(module: tvm.IRModule, pairs: Mapping[str, str], inputs: Sequence[str],
                     outputs: Sequence[str]) -> tvm.IRModule:  # fmt: skip
    """The module that writes outputs into the memory of inputs: `pairs` has outputs by inputs.

    `inputs` and `outputs` name the parameters and the results of `main`, in order. Raises
    ModelError, naming input and output, where the one is not the other with some elements replaced,
    or where something else reads the input.
    """
    if not pairs:
        return module
    main = module["main"]
    flow = dataflow(main)
    results = _results(flow, main)
    found = []
    for name, output in pairs.items():
        words = f"output '{output}' cannot be written into input '{name}'"
        cache = main.params[_place(inputs, name, words, "input")]
        result = results[_place(outputs, output, words, "output")]
        found.append(_update(flow, cache, result, words))
    return _written(module, found)


def _place(names: Sequence[str], name: str, words: str, what: str) -> int:
    if name not in names:
        raise ModelError(f"{words}: the model has no such {what}; it has {_some(names)}")
    return names.index(name)


def _some(names: Sequence[str]) -> str:
    more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])


def _results(flow: Dataflow, main: relax.Function) -> list[relax.Expr]:
    whole = main.body.body
    value = flow.values.get(whole, whole) if isinstance(whole, relax.Var) else whole
    return list(value.fields) if isinstance(value, relax.Tuple) else [whole]


# --- finding --------------------------------------------------------------------------------------


def _update(flow: Dataflow, cache: relax.Var, result: relax.Expr, words: str) -> CacheUpdate:
    if (dtype(cache), shape(cache)) != (dtype(result), shape(result)):
        kinds = [f"{dtype(x)}{list(shape(x))}" for x in (result, cache)]
        raise ModelError(f"{words}: the one is {kinds[0]}, the other {kinds[1]}")
    after = list(_through_views(flow, result))
    update = after.pop() if after else result
    found = _updated(flow, cache, update)
    if found is None:
        made = flow.operator(update) if update in flow.values else "an input"
        raise ModelError(
            f"{words}: it is computed by {made}, and not from the input by replacing some elements "
            "(ScatterND, ScatterElements, TensorScatter, Where, or a cache with room for all "
            "positions)"
        )
    position, views = found
    if not _same_places(flow, cache, [*views, *reversed(after)]):
        raise ModelError(f"{words}: its elements are in another order")
    path = (*views, update)
    for v, reader in zip((cache, *views), path, strict=True):
        others = [r for r in flow.readers.get(v, ()) if not r.same_as(reader)]
        if others or v in flow.outputs:
            by = "an output" if v in flow.outputs else f"'{flow.name(others[0])}'"
            raise ModelError(f"{words}: {by} also reads the input, which would have changed")
    return CacheUpdate(cache, update, result, position, views)


def _through_views(flow: Dataflow, v: relax.Expr) -> Iterator[relax.Var]:
    """A value, and what it is a view of, and so on; the last one is no view."""
    while isinstance(v, relax.Var):
        yield v
        if _operator(flow, v) not in BIJECTIVE:
            return
        v = flow.values[v].args[0]


def _operator(flow: Dataflow, v: relax.Expr) -> str:
    return f"relax.{flow.operator(v)}" if isinstance(v, relax.Var) else ""


def _updated(
    flow: Dataflow, cache: relax.Var, update: relax.Expr
) -> tuple[int, tuple[relax.Var, ...]] | None:
    """The operand of which an operator replaces elements, by its position, if that is the cache,
    and the views between, the cache's own first; None where it is not."""
    operator = _operator(flow, update)
    if operator not in REPLACING:
        return None
    value = flow.values[update]
    positions: tuple[int, ...] = (0,)
    if operator == "relax.where":
        positions = tuple(i for i in (1, 2) if shape(value.args[i]) == shape(value))
    elif value.attrs.reduction != "update":
        return None
    for i in positions:
        path = list(_through_views(flow, value.args[i]))
        if path and path[-1].same_as(cache):
            return i, tuple(reversed(path[:-1]))
    return None


def _same_places(flow: Dataflow, cache: relax.Var, views: Sequence[relax.Var]) -> bool:
    """Whether views, one of the other, end with every element where it was in the cache. They are
    applied to memory that is never touched; NumPy copies where no strides describe a view."""
    memory = np.empty(shape(cache), np.uint8)
    seen = memory
    for v in views:
        if flow.operator(v) == "permute_dims":
            seen = seen.transpose(permutation(flow.values[v]))
        else:
            seen = seen.reshape(shape(v))
    start = memory.__array_interface__["data"]
    strides = [
        [s for n, s in zip(x.shape, x.strides, strict=True) if n > 1] for x in (seen, memory)
    ]
    same = seen.shape == memory.shape and strides[0] == strides[1]
    return same and seen.__array_interface__["data"] == start


# --- writing --------------------------------------------------------------------------------------


def _written(module: tvm.IRModule, found: Sequence[CacheUpdate]) -> tvm.IRModule:
    """The module in which updates are calls that write into their caches."""
    builder = relax.BlockBuilder(tvm.IRModule(dict(module.functions), attrs=module.attrs))
    flow = dataflow(module["main"])
    updates = {one.update: one for one in found}
    names = {}
    for one in found:
        views = [flow.values[v] for v in one.views]
        function, operands = replacing(flow.values[one.update], one.position, one.cache, views)
        names[one.update] = builder.add_func(function, f"replace_in_{one.cache.name}"), operands
    made = builder.get()
    main = made["main"]
    blocks, given = [], dict[relax.Var, relax.Var]()
    for block in main.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            if binding.var in updates:
                one = updates[binding.var]
                calls = _calls(one, *names[one.update], flow)
                given[one.result] = calls[0].var
                bindings += calls
            elif binding.var in given:
                bindings.append(relax.VarBinding(binding.var, given[binding.var]))
            else:
                bindings.append(binding)
        blocks.append(type(block)(bindings))
    made.update_func(made.get_global_var("main"), with_blocks(main, blocks))
    passes = [
        relax.transform.Normalize(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    return tvm.transform.Sequential(passes)(made)


def _calls(
    one: CacheUpdate, name: tvm.ir.GlobalVar, operands: Sequence[relax.Expr], flow: Dataflow
) -> list[relax.VarBinding]:
    """The call that changes the cache, and views of it for what reads the update."""
    call = relax.call_tir_inplace(name, [one.cache, *operands], [0], one.cache.ty)
    if not one.views:
        return [relax.VarBinding(one.update, call)]
    changed = relax.DataflowVar(f"{one.cache.name}_changed", one.cache.ty)
    bindings, last = [relax.VarBinding(changed, call)], changed
    for v in one.views:
        view = flow.values[v]
        var = one.update if v.same_as(one.views[-1]) else relax.DataflowVar(f"{v.name}_seen", v.ty)
        again = with_arguments(view, [last, *view.args[1:]])
        bindings.append(relax.VarBinding(var, again))
        last = var
    return bindings
