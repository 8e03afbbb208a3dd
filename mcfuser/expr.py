"""Scalar expressions: the computation of one element of an operator.

An expression is a frozen tree of constants, positions along axes, reads of tensors at affine
indices, casts, and calls of the functions in `ARITY`. Its text is in Python's notation:
`parse(text(e)) == e`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from mcfuser.errors import ChainError

ARITY: Mapping[str, int] = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "max": 2, "min": 2, "pow": 2,
    "neg": 1, "abs": 1, "exp": 1, "exp2": 1, "log": 1, "sqrt": 1, "tanh": 1, "erf": 1, "floor": 1,
    "lt": 2, "le": 2, "eq": 2, "ne": 2, "and": 2, "or": 2, "not": 1, "select": 3,
    "round": 1, "shift_right": 2, "bit_and": 2,
}  # fmt: skip
"""The functions of the language, by their number of arguments. Those of bits take whole numbers."""

CONDITIONS = ("lt", "le", "eq", "ne", "and", "or", "not")
"""The functions that hold or do not."""
NARROW = ("int8", "uint8", "int16")
"""Integer types of inputs, and of results that are no reductions. What is computed from them is an
int32, and what becomes one is bounded to its numbers."""
BOUNDS: Mapping[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255),
                                         "int16": (-(2**15), 2**15 - 1)}  # fmt: skip
"""The least and the largest number of each of them."""
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool", *NARROW)
DISCRETE = ("int32", "int64", "bool", *NARROW)
"""A cast to one of these is a step function: it changes the value, not only its precision."""


@dataclass(frozen=True, slots=True)
class Affine:
    """An affine index: the sum of (axis, coefficient) products in `terms`, plus `offset`."""

    terms: tuple[tuple[str, int], ...]
    offset: int = 0

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(axis for axis, _ in self.terms)

    @property
    def plain(self) -> str | None:
        """The axis, if the index is just one axis; else None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and self.offset == 0:
            return self.terms[0][0]
        return None


@dataclass(frozen=True, slots=True)
class Const:
    """A constant."""

    value: float | int | bool


@dataclass(frozen=True, slots=True)
class Index:
    """The position along an axis, as a number."""

    axis: str


@dataclass(frozen=True, slots=True)
class Read:
    """An element of a tensor, at one affine index per dimension."""

    tensor: str
    indices: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """A value converted to a dtype."""

    arg: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of `ARITY` applied to arguments; raises ChainError where there is none such."""

    op: str
    args: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if ARITY.get(self.op) != len(self.args):
            raise ChainError(
                f"operator '{self.op}' with {len(self.args)} arguments is not known; "
                f"use one of {', '.join(ARITY)}"
            )


Expr = Const | Index | Read | Cast | Call


def axis(name: str) -> Affine:
    """The index that is one axis."""
    return Affine(((name, 1),))


def read(tensor: str, *axes: str) -> Read:
    """A read of a tensor at the given axes."""
    return Read(tensor, tuple(axis(a) for a in axes))


def call(op: str, *args: Expr | float) -> Call:
    """A function applied to arguments; numbers become constants."""
    return Call(op, tuple(Const(a) if isinstance(a, (int, float)) else a for a in args))


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions of an expression."""
    match e:
        case Call():
            return e.args
        case Cast():
            return (e.arg,)
        case Const() | Index() | Read():
            return ()
        case _:
            assert_never(e)


def walk(e: Expr) -> Iterator[Expr]:
    """All nodes of an expression, parents before children."""
    left = [e]
    while left:
        node = left.pop()
        yield node
        if below := children(node):
            left += below[::-1]


def reads(e: Expr) -> tuple[Read, ...]:
    """The distinct reads of an expression, in the order of its text."""
    if isinstance(e, Read):
        return (e,)
    found, left = list[Read](), list[Expr]((e,))  # no generator: a search asks a million times
    while left:
        node = left.pop()
        if isinstance(node, Read):
            found.append(node)
        elif below := children(node):
            left += below[::-1]
    return tuple(dict.fromkeys(found)) if len(found) > 1 else tuple(found)


def conjuncts(e: Expr | None) -> tuple[Expr, ...]:
    """The conditions whose conjunction a condition is; none for None."""
    if isinstance(e, Call) and e.op == "and":
        return tuple(c for a in e.args for c in conjuncts(a))
    return (e,) if e is not None else ()


def uncast(e: Expr) -> Expr:
    """The expression without outer casts, whatever they do to its value."""
    return uncast(e.arg) if isinstance(e, Cast) else e


def axes(e: Expr) -> tuple[str, ...]:
    """The axes in an expression, as positions or in indices, in the order of its text."""
    used: dict[str, None] = {}
    for node in walk(e):
        if isinstance(node, Index):
            used[node.axis] = None
        elif isinstance(node, Read):
            used.update((a, None) for index in node.indices for a in index.axes)
    return tuple(used)


def rewrite(e: Expr, leaf: Callable[[Read | Index], Expr]) -> Expr:
    """The expression with `leaf(node)` in place of every read and position."""
    match e:
        case Read() | Index():
            return leaf(e)
        case Cast():
            return Cast(rewrite(e.arg, leaf), e.dtype)
        case Call():
            return Call(e.op, tuple(rewrite(a, leaf) for a in e.args))
        case Const():
            return e
        case _:
            assert_never(e)


def replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    """The expression with `new` in place of every subexpression `old`."""
    if e == old:
        return new
    match e:
        case Cast():
            return Cast(replaced(e.arg, old, new), e.dtype)
        case Call():
            return Call(e.op, tuple(replaced(a, old, new) for a in e.args))
        case Const() | Index() | Read():
            return e
        case _:
            assert_never(e)


def substitute(index: Affine, axes: Mapping[str, Affine]) -> Affine:
    """An index with the indices in `axes` in place of these axes."""
    total: dict[str, int] = {}
    offset = index.offset
    for name, factor in index.terms:
        inner = axes.get(name, axis(name))
        offset += factor * inner.offset
        for other, coefficient in inner.terms:
            total[other] = total.get(other, 0) + factor * coefficient
    return Affine(tuple(sorted((a, c) for a, c in total.items() if c)), offset)


def rename(e: Expr, tensors: Mapping[str, str], axes: Mapping[str, str]) -> Expr:
    """The expression with tensors and axes renamed; names that are not given stay."""
    indices = {old: axis(new) for old, new in axes.items()}

    def leaf(node: Read | Index) -> Expr:
        if isinstance(node, Index):
            return Index(axes.get(node.axis, node.axis))
        moved = tuple(substitute(i, indices) for i in node.indices)
        return Read(tensors.get(node.tensor, node.tensor), moved)

    return rewrite(e, leaf)


def at(e: Expr, indices: Mapping[str, Affine]) -> Expr:
    """The expression at other positions: the indices in `indices` in place of these axes."""

    def leaf(node: Read | Index) -> Expr:
        if isinstance(node, Index):
            return _position(indices[node.axis]) if node.axis in indices else node
        return Read(node.tensor, tuple(substitute(i, indices) for i in node.indices))

    return rewrite(e, leaf)


def _position(index: Affine) -> Expr:
    parts: list[Expr] = [
        Index(a) if c == 1 else Call("mul", (Const(c), Index(a))) for a, c in index.terms
    ]
    if index.offset or not parts:
        parts.append(Const(index.offset))
    result = parts[0]
    for part in parts[1:]:
        result = Call("add", (result, part))
    return result


# --- text -----------------------------------------------------------------------------------

_INFIX = {
    "or": (1, "or"), "and": (2, "and"), "lt": (4, "<"), "le": (4, "<="), "eq": (4, "=="),
    "ne": (4, "!="), "add": (5, "+"), "sub": (5, "-"), "mul": (6, "*"), "div": (6, "/"),
}  # fmt: skip
_BINARY: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
}
_COMPARE: dict[type[ast.AST], str] = {ast.Lt: "lt", ast.LtE: "le", ast.Eq: "eq", ast.NotEq: "ne"}


def index_text(index: Affine) -> str:
    """An affine index as text: `2*m + k - 1`."""
    parts = [a if c == 1 else f"{c}*{a}" for a, c in index.terms]
    if index.offset or not parts:
        parts.append(str(index.offset))
    return " + ".join(parts).replace("+ -", "- ")


def text(e: Expr, outer: int = 0) -> str:
    """The expression as Python text; `outer` is the binding strength of the operator around it."""
    if isinstance(e, Const):
        if isinstance(e.value, bool) or e.value >= 0:
            return repr(e.value)
        return f"({e.value!r})" if outer > 5 else repr(e.value)
    if isinstance(e, Index):
        return e.axis
    if isinstance(e, Read):
        return f"{e.tensor}[{', '.join(index_text(i) for i in e.indices) or '()'}]"
    if isinstance(e, Cast):
        return f"{e.dtype}({text(e.arg)})"
    if not isinstance(e, Call):
        assert_never(e)
    if e.op in _INFIX:
        strength, sign = _INFIX[e.op]
        left = text(e.args[0], strength + (strength == 4))
        words = f"{left} {sign} {text(e.args[1], strength + 1)}"
        return f"({words})" if strength < outer else words
    if e.op == "neg" and not isinstance(e.args[0], Const):
        words = f"-{text(e.args[0], 7)}"
        return f"({words})" if outer > 6 else words
    if e.op == "not":
        return f"not_({text(e.args[0])})"
    return f"{e.op}({', '.join(text(a) for a in e.args)})"


def parse(source: str) -> Expr:
    """The expression of a text; raises ChainError, naming the part that is not understood."""
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except SyntaxError as error:
        raise ChainError(f"'{_short(source)}' is not an expression: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):
        raise ChainError(_too_deep(source)) from None
    try:
        return _parse(tree)
    except RecursionError:
        raise ChainError(_too_deep(source)) from None


def _too_deep(source: str) -> str:
    return (
        f"'{_short(source)}' is no expression that can be read: too many operations inside one "
        "another"
    )


def _short(source: str) -> str:
    return source if len(source) <= 100 else f"{source[:100]}.."


def _parse(node: ast.expr) -> Expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return Const(node.value)
    if isinstance(node, ast.Name):
        return Const(math.inf) if node.id == "inf" else Index(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _parse(node.operand)
        return Const(-inner.value) if isinstance(inner, Const) else Call("neg", (inner,))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return Call("not", (_parse(node.operand),))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return Call(_BINARY[type(node.op)], (_parse(node.left), _parse(node.right)))
    if isinstance(node, ast.BoolOp):
        op = "and" if isinstance(node.op, ast.And) else "or"
        result = _parse(node.values[0])
        for value in node.values[1:]:
            result = Call(op, (result, _parse(value)))
        return result
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _comparison(node)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return Read(node.value.id, tuple(_affine(i) for i in indices))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        args = tuple(_parse(a) for a in node.args)
        if node.func.id in DTYPES and len(args) == 1:
            return Cast(args[0], node.func.id)
        return Call(node.func.id.rstrip("_"), args)
    raise ChainError(f"'{_short(ast.unparse(node))}' is not part of the expression language")


def _comparison(node: ast.Compare) -> Expr:
    left, right = _parse(node.left), _parse(node.comparators[0])
    kind = type(node.ops[0])
    if kind in (ast.Gt, ast.GtE):
        return Call("lt" if kind is ast.Gt else "le", (right, left))
    if kind not in _COMPARE:
        raise ChainError(f"'{_short(ast.unparse(node))}' is not a comparison of numbers")
    return Call(_COMPARE[kind], (left, right))


def _affine(node: ast.expr) -> Affine:
    total: dict[str, int] = {}

    def collect(part: ast.expr, factor: int) -> int:
        if isinstance(part, ast.Constant) and type(part.value) is int:
            return factor * part.value
        if isinstance(part, ast.Name):
            total[part.id] = total.get(part.id, 0) + factor
            return 0
        if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
            return collect(part.operand, -factor)
        if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Add, ast.Sub)):
            sign = 1 if isinstance(part.op, ast.Add) else -1
            return collect(part.left, factor) + collect(part.right, sign * factor)
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
            for number, rest in ((part.left, part.right), (part.right, part.left)):
                if (value := _whole(number)) is not None:
                    return collect(rest, factor * value)
        raise ChainError(f"index '{_short(ast.unparse(node))}' is not affine in the axes")

    offset = collect(node, 1)
    return Affine(tuple(sorted((a, c) for a, c in total.items() if c)), offset)


def _whole(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _whole(node.operand)
        return -inner if inner is not None else None
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None
