"""From TVMScript to a PrimFunc, several times faster than by TVM's own parser.

TVM's parser compiles and evaluates each operation of an expression by itself, which takes longer
than LLVM takes for the whole function. Here a text becomes Python that makes the same calls of
TVM's builder, compiled and run once. Bodies of loops and of conditions become functions, so that a
name is known where TVM's parser knows it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.parser import tirx as script
from tvm.tirx.script import builder as T

Statements = Callable[..., None]
_PLACE: dict[str, Any] = {"lineno": 1, "col_offset": 0}
"""What Python asks of each node that was not parsed."""


def prim_func(text: str) -> tirx.PrimFunc:
    """The PrimFunc of a text, one function with @T.prim_func.

    It has the statements that kernels have: loops, conditions, assertions, calls, and assignments
    to elements, to buffers, and to names that are declared T.let. Raises SyntaxError at any other
    statement, and what Python and TVM raise where the text means nothing.
    """
    function = _function(text)
    options = _options(function)
    function.decorator_list = []
    function.body = _Builder().body(function.body)
    module = ast.Module([function], [])
    names: dict[str, Any] = {"__builtins__": {}, "T": script, **_CALLS}
    exec(compile(module, "<kernel>", "exec", dont_inherit=True), names)
    return _built(names[function.name], options)


def _function(text: str) -> ast.FunctionDef:
    match ast.parse(text).body:
        case [ast.FunctionDef(decorator_list=[_]) as function]:
            return function
    raise SyntaxError("a text is one function with @T.prim_func")


def _options(function: ast.FunctionDef) -> dict[str, Any]:
    """What @T.prim_func is given."""
    (decorator,) = function.decorator_list
    given = decorator.keywords if isinstance(decorator, ast.Call) else []
    options = {str(k.arg): ast.literal_eval(k.value) for k in given}
    return {"is_private": options.pop("private", False), **options}


def _built(statements: Statements, options: dict[str, Any]) -> tirx.PrimFunc:
    with IRBuilder() as builder:
        with T.prim_func(**options):
            T.func_name(statements.__name__)
            parameters = statements.__annotations__.items()
            statements(*(T.arg(name, _parameter(kind)) for name, kind in parameters))
        made = builder.get()
    tvm.s_tir.analysis.verify_well_formed(tvm.IRModule.from_expr(made))
    return made


def _parameter(kind: Any) -> Any:
    return kind() if callable(kind) and not isinstance(kind, ir.Expr) else kind


class _Builder(ast.NodeVisitor):
    """Statements of TVMScript as the Python that builds them."""

    def __init__(self) -> None:
        self.functions = 0

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [made for s in statements for made in self.visit(s)]

    def visit_For(self, s: ast.For) -> list[ast.stmt]:
        names = [n.id for n in ast.walk(s.target) if isinstance(n, ast.Name)]
        if s.orelse:
            self.generic_visit(s)
        given = ast.Tuple([ast.Constant(n, **_PLACE) for n in names], ast.Load(), **_PLACE)
        return self.with_bodies("_loop", [s.iter, given], [(names, s.body)])

    def visit_If(self, s: ast.If) -> list[ast.stmt]:
        return self.with_bodies("_when", [s.test], [([], b) for b in (s.body, s.orelse) if b])

    def visit_With(self, s: ast.With) -> list[ast.stmt]:
        match s.items:
            case [ast.withitem(context, None)]:
                return self.with_bodies("_within", [context], [([], s.body)])
        return self.generic_visit(s)

    def visit_Assign(self, s: ast.Assign) -> list[ast.stmt]:
        match s.targets:
            case [ast.Subscript(buffer, index)]:
                return [_call("_store", buffer, s.value, index)]
            case [ast.Name(name)]:
                return [_named(name, "_defined", s.value)]
        return self.generic_visit(s)

    def visit_AnnAssign(self, s: ast.AnnAssign) -> list[ast.stmt]:
        if isinstance(s.target, ast.Name) and s.value is not None:
            return [_named(s.target.id, "_let", s.annotation, s.value)]
        return self.generic_visit(s)

    def visit_Assert(self, s: ast.Assert) -> list[ast.stmt]:
        if s.msg is None:
            return self.generic_visit(s)
        return [_call("_asserted", s.test, s.msg)]

    def visit_Expr(self, s: ast.Expr) -> list[ast.stmt]:
        return [_call("_evaluated", s.value)]

    def generic_visit(self, s: ast.AST) -> list[ast.stmt]:
        line = getattr(s, "lineno", 0)
        raise SyntaxError(f"line {line}: no kernel has such a statement: {ast.unparse(s)}")

    def with_bodies(
        self, function: str, given: list[ast.expr], bodies: list[tuple[list[str], list[ast.stmt]]]
    ) -> list[ast.stmt]:
        """A call of a function that is also given bodies, each a function of some names."""
        made: list[ast.stmt] = []
        for names, body in bodies:
            self.functions += 1
            name = f"_body_{self.functions}"
            each = [ast.arg(n, **_PLACE) for n in names]
            parameters = ast.arguments([], each, None, [], [], None, [])
            made.append(ast.FunctionDef(name, parameters, self.body(body), [], **_PLACE))
            given = [*given, _name(name)]
        return [*made, _call(function, *given)]


def _call(function: str, *given: ast.expr) -> ast.stmt:
    for e in given:
        if isinstance(e, ast.Tuple):
            e.ctx = ast.Load()
    return ast.Expr(ast.Call(_name(function), list(given), [], **_PLACE), **_PLACE)


def _named(name: str, function: str, *given: ast.expr) -> ast.stmt:
    call = ast.Call(_name(function), [ast.Constant(name, **_PLACE), *given], [], **_PLACE)
    return ast.Assign([ast.Name(name, ast.Store(), **_PLACE)], call, **_PLACE)


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load(), **_PLACE)


def _range(first: Any, end: Any = None) -> Any:
    return T.serial(0, first) if end is None else T.serial(first, end)


def _loop(frame: Any, names: tuple[str, ...], body: Statements) -> None:
    with frame as made:
        variables = (made,) if len(names) == 1 else tuple(made)
        for name, variable in zip(names, variables, strict=True):
            IRBuilder.name(name, variable)
        body(*variables)


def _when(test: Any, then: Statements, otherwise: Statements | None = None) -> None:
    if isinstance(test, bool):
        chosen = then if test else otherwise
        if chosen is not None:
            chosen()
        return
    with T.If(test):
        with T.Then():
            then()
        if otherwise is not None:
            with T.Else():
                otherwise()


def _within(frame: Any, body: Statements) -> None:
    with frame:
        body()


def _store(buffer: Any, value: Any, index: Any) -> None:
    T.buffer_store(buffer, value, list(index) if isinstance(index, tuple) else index)


def _defined(name: str, value: Any) -> Any:
    """A buffer or a variable, which has its name from here on."""
    IRBuilder.name(name, value)
    return value


def _let(name: str, kind: Any, value: Any) -> Any:
    variable = kind.as_var()
    IRBuilder.name(name, variable)
    T.Bind(value if isinstance(value, ir.Expr) else tirx.const(value), var=variable)
    return variable


def _asserted(test: Any, message: str) -> None:
    """What follows is in its frame, which ends with the one around it."""
    frame = T.Assert(test, message, error_kind="RuntimeError")
    frame.add_callback(partial(frame.__exit__, None, None, None))
    frame.__enter__()


def _evaluated(value: Any) -> None:
    """A call that stands for itself; some have made their statement, and give nothing."""
    if value is not None:
        T.evaluate(value)


_CALLS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (_loop, _when, _within, _store, _defined, _let, _asserted, _evaluated)
} | {"range": _range}
"""What the Python that a text becomes calls."""
