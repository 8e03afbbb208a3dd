"""Rewrites calls and variables in a Relax function, without a walk of TVM's for nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from tvm import ir, relax

CallRewriter = Callable[[relax.Call], relax.Expr]


@relax.expr_functor.mutator
class _Rewriting(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces the calls of some operators by what a rewriter makes of each."""

    def __init__(self, operators: Collection[str], rewriter: CallRewriter) -> None:
        super().__init__()
        self.operators, self.rewriter = operators, rewriter

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not isinstance(call.op, ir.Op) or str(call.op.name) not in self.operators:
            return call
        return self.builder_.normalize(self.rewriter(self.builder_.normalize(call)))


def calls_rewritten(
    function: relax.Function, operators: Collection[str], rewriter: CallRewriter
) -> relax.Function:
    """The function with every call of some operators rewritten, once."""
    if not any(name in operators for name in called(function.body)):
        return function
    return _Rewriting(operators, rewriter).visit_expr(function)


def with_arguments(call: relax.Call, arguments: Sequence[relax.Expr]) -> relax.Call:
    """The same call of other arguments."""
    return relax.Call(call.op, [*arguments], call.attrs, call.ty_args)


def called(body: relax.Expr) -> Iterator[str]:
    """The names of the operators that the bindings of a body call, and those of its branches."""
    return (name for name, _ in calls(body))


def calls(body: relax.Expr) -> Iterator[tuple[str, relax.Call]]:
    """The calls of operators in the bindings of a body and of its branches, with the operators'
    names."""
    for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, relax.Call) and isinstance(value.op, ir.Op):
                yield str(value.op.name), value
            elif isinstance(value, relax.If):
                yield from calls(value.true_branch)
                yield from calls(value.false_branch)


@relax.expr_functor.mutator
class _Renaming(relax.PyExprMutator):  # type: ignore[misc]
    """Puts other variables in the place of some, where they are defined and where they are read."""

    def __init__(self, renamed: Mapping[relax.Var, relax.Var]) -> None:
        super().__init__()
        self.renamed = renamed

    def visit_var_def_(self, v: relax.Var) -> relax.Var:
        return self.renamed.get(v, v)

    def visit_dataflow_var_def_(self, v: relax.DataflowVar) -> relax.Var:
        return self.renamed.get(v, v)

    def visit_var_(self, v: relax.Var) -> relax.Var:
        return self.renamed.get(v, v)

    def visit_dataflow_var_(self, v: relax.DataflowVar) -> relax.Var:
        return self.renamed.get(v, v)


def with_variables(expression: relax.Expr, renamed: Mapping[relax.Var, relax.Var]) -> relax.Expr:
    """The expression, or function, with other variables in the place of some."""
    return _Renaming(renamed).visit_expr(expression) if renamed else expression
