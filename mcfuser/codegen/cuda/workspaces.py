"""Memory that a function needs while it runs, as a result that nobody reads.

TVM allocates it inside the function, from a pool that is a thread's own, and takes it back when the
call ends, although the GPU has not begun by then. In a stream that is no matter: what uses it next
comes behind. In a CUDA graph it is: the graph keeps the address, and another module of the thread,
captured or not, may write there meanwhile, or have the pool free it for more. What a module
allocates for its values belongs to a run, and a captured run keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, tirx

from mcfuser.codegen.cuda.root import with_root

_CALL, _UPDATE = (tvm.ir.Op.get(f"relax.{name}") for name in ("call_tir", "call_tir_inplace"))


def workspaces_given() -> tvm.transform.Pass:
    """A pass after which no function with a schedule allocates a GPU's memory: its callers pass it
    what it needs. Extents must be numbers."""
    return tvm.transform.module_pass(lambda module, _: _given(module), opt_level=0)


def workspaces(function: Any) -> tuple[tirx.Var, ...]:
    """What a function allocates in a GPU's memory, for all its kernels: buffers."""
    if not isinstance(function, tirx.PrimFunc) or not isinstance(
        function.body, s_tir.SBlockRealize
    ):
        return ()
    root = function.body.block
    own = (*root.alloc_buffers, *(s.buffer for s in _steps(root.body) if _allocates(s)))
    return tuple(b for b in own if str(b.scope()) == "global" and _numbers(b) is not None)


def _steps(body: tirx.Stmt) -> Iterator[tirx.Stmt]:
    """The statements of a function that stand in no loop."""
    if isinstance(body, tirx.SeqStmt):
        for step in body.seq:
            yield from _steps(step)
    else:
        yield body


def _allocates(step: tirx.Stmt) -> bool:
    return isinstance(step, tirx.AllocBuffer)


def _numbers(buffer: tirx.Var) -> list[int] | None:
    """The extents of a buffer, if all of them are numbers."""
    known = [int(n) for n in buffer.shape if isinstance(n, tirx.IntImm)]
    return known if len(known) == len(buffer.shape) else None


def _given(module: tvm.IRModule) -> tvm.IRModule:
    own = {v: found for v, f in module.functions_items() if (found := workspaces(f))}
    if not own:
        return module
    functions, named = dict(module.functions), dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar]()
    for variable, found in own.items():
        taking = _taking(functions.pop(variable), found)
        named[variable] = tvm.ir.GlobalVar(variable.name_hint)
        relax.expr._update_type(named[variable], taking.ty)
        functions[named[variable]] = taking
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            functions[variable] = _Passing(own, named).visit_expr(function)
    return tvm.IRModule(functions, attrs=module.attrs)


def _taking(function: tirx.PrimFunc, own: Sequence[tirx.Var]) -> tirx.PrimFunc:
    """The function that takes as last arguments what it allocated."""
    root = function.body.block

    def given(buffer: tirx.Var) -> bool:
        return any(buffer.same_as(b) for b in own)

    steps = [s for s in _steps(root.body) if not (_allocates(s) and given(s.buffer))]
    kept = [b for b in root.alloc_buffers if not given(b)]
    return with_root(function, [*function.params, *own], steps, kept)


@relax.expr_functor.mutator
class _Passing(relax.PyExprMutator):  # type: ignore[misc]
    """Calls the functions that are `taking` what they allocated, their `own`."""

    def __init__(
        self,
        own: Mapping[tvm.ir.GlobalVar, Sequence[tirx.Var]],
        taking: Mapping[tvm.ir.GlobalVar, tvm.ir.GlobalVar],
    ) -> None:
        super().__init__()
        self.own, self.taking = own, taking

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if call.op not in (_CALL, _UPDATE) or call.args[0] not in self.own:
            return super().visit_call_(call)
        (kind,) = call.ty_args
        several = isinstance(kind, relax.TupleType)
        types = list(kind.fields) if several else [kind]
        given = [relax.TensorType(_numbers(b), b.dtype) for b in self.own[call.args[0]]]
        arguments = relax.Tuple([self.visit_expr(a) for a in call.args[1].fields])
        called = self.taking[call.args[0]]
        if call.op == _CALL:
            made = relax.call_tir(called, arguments, [*types, *given])
        else:
            places = [*call.attrs.inplace_indices, *(-1 for _ in given)]
            made = relax.call_tir_inplace(called, arguments, places, [*types, *given])
        results = self.builder_.emit(made)
        items = [relax.TupleGetItem(results, i) for i in range(len(types))]
        return relax.Tuple(items) if several else items[0]
