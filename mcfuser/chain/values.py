"""The values of a chain: its axes, tensors and operators, and the chain itself.

Nothing here knows loops, devices, or names of operators: attention is a few operators like any
others. A chain is checked when it is built.
"""

from __future__ import annotations

import hashlib
import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from mcfuser.chain.matrix_product import Product, matrix_product
from mcfuser.errors import ChainError
from mcfuser.expr import (
    DTYPES,
    NARROW,
    Cast,
    Const,
    Expr,
    Index,
    Read,
    axes,
    children,
    reads,
    rename,
    rewrite,
    text,
    walk,
)

Reducer = Literal["none", "sum", "max"]
TF32: Literal["tf32"] = "tf32"
"""Numbers of ten bits of mantissa, as tensor cores multiply; they are stored as float32."""
ProductPrecision = Literal["float32", "tf32"]
"""To what the float32 operands of products may be rounded, at most."""
BYTES: Mapping[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
                            "int32": 4, "int64": 8, "bool": 1, "int8": 1, "uint8": 1,
                            "int16": 2}  # fmt: skip
LOWEST = -3.4028234663852886e38
"""The identity of the maximum; finite, so that differences of maxima are never NaN."""
WHOLE = ("int32", "int64")
"""The integer dtypes."""
LONGEST = 2**31 - 1
"""The largest extent. Kernels count positions in 32 bits."""
DEEPEST = 150
"""The largest depth of an operator's expression, with the maps that it reads inlined."""
LONGEST_BODY = 20_000
"""The largest number of an operator's operations, with the maps that it reads inlined."""
LONGEST_NAME = 500
"""The largest number of characters of the name of a chain, an axis or a tensor."""
_AXIS = re.compile(r"[a-z][0-9]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Bounds:
    """An extent that is known only at run time, from `low` to `high`."""

    low: int
    high: int


Extent = int | Bounds


def lowest(dtype: str) -> float:
    """The identity of the maximum in a dtype."""
    return {"int32": -(2**31), "int64": -(2**63)}.get(dtype, LOWEST)


def largest(extent: Extent) -> int:
    """An extent; the upper bound of one that is known only at run time."""
    return extent.high if isinstance(extent, Bounds) else extent


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: a name (a letter, perhaps with digits after it) and an extent."""

    name: str
    extent: Extent


@dataclass(frozen=True, slots=True)
class Digit:
    """One of several dimensions of an array along which a dimension of a tensor runs: an extent,
    and a stride in elements. `padding` is the number of the tensor's padding, if it moves along
    one."""

    extent: int
    stride: int
    padding: int | None = None


Stride = int | tuple[Digit, ...]
"""The stride along a dimension, in elements; of one that runs along several dimensions of an array,
row by row, or along one with padding, these: its positions are numbers whose last digit is that of
the last one."""


def digits(stride: Stride, extent: int) -> tuple[Digit, ...]:
    """The digits of a dimension's positions; one where it has one stride."""
    return (Digit(extent, stride),) if isinstance(stride, int) else stride


@dataclass(frozen=True, slots=True)
class Padding:
    """A number around an array, along one of its dimensions: the tensor has positions `before` the
    first one, and past the last one, that the array lacks, and there it is `value`.

    The dimension has an extent, and a stride in elements. The position along it of an element of
    the tensor is the sum of the digits that move along it, each times its own stride over this one,
    less `before`.
    """

    extent: int
    stride: int
    before: int
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor. Each dimension is a number, or the name of the axis whose extent it has.

    `strides` and `offset`, in elements, are those that an input or output has in the surrounding
    graph; without strides the tensor is dense and row-major. `constant` says that its values are
    known when the chain is compiled. An input may have `padding`: elements that its array lacks.
    The offset is that of the array's first position along each of them.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    constant: bool = False
    strides: tuple[Stride, ...] | None = None
    offset: int = 0
    padding: tuple[Padding, ...] = ()


@dataclass(frozen=True)
class Operator:
    """`out[axes] = reduce[over] body where domain`.

    `body` is computed for all positions of `axes` and `over` where the condition `domain` holds;
    elsewhere it counts as the reducer's identity, or 0 in a map.
    """

    out: str
    axes: tuple[str, ...]
    body: Expr
    reduce: Reducer = "none"
    over: tuple[str, ...] = ()
    domain: Expr | None = None

    @property
    def related(self) -> tuple[str, ...]:
        """The axes that the operator iterates over: the paper's related loops."""
        return self.axes + self.over

    @cached_property
    def product(self) -> Product | None:
        """The roles of its axes where it is a matrix product; None where it is none."""
        return matrix_product(self.axes, self.over, self.body) if self.reduce == "sum" else None

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """The distinct reads of its body, in the order of its text."""
        return reads(self.body)

    def __str__(self) -> str:
        head = f"{self.out}[{', '.join(self.axes)}] = "
        if self.reduce != "none":
            head += f"{self.reduce}[{', '.join(self.over)}] "
        tail = f" where {text(self.domain)}" if self.domain is not None else ""
        return head + text(self.body) + tail


def sources(o: Operator) -> Iterator[Read]:
    """The reads of an operator, in its body and in its domain."""
    yield from o.reads
    if o.domain is not None:
        yield from reads(o.domain)


@dataclass(frozen=True)
class Chain:
    """Operators in an order in which they can run, over named axes and tensors.

    `outputs` are the tensors that are read outside; the last operator's result if none are given.
    With the `precision` tf32, kernels may round float32 operands of products to TF32's ten bits of
    mantissa. Raises ChainError, naming the operator and the axis or tensor, where they do not fit
    together.
    """

    name: str
    axes: tuple[Axis, ...]
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...] = field(default=())
    precision: ProductPrecision = "float32"

    def __post_init__(self) -> None:
        if not self.outputs and self.operators:
            object.__setattr__(self, "outputs", (self.operators[-1].out,))
        _check(self)

    def extent(self, name: str) -> Extent:
        """The extent of an axis."""
        return self._axes[name].extent

    def size(self, name: str) -> int:
        """The extent of an axis as a number: its upper bound if it is known only at run time."""
        return largest(self._axes[name].extent)

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def readers(self, tensor: str) -> tuple[Operator, ...]:
        """The operators that read a tensor, in their bodies or domains."""
        return self._readers.get(tensor, ())

    def operator(self, out: str) -> Operator:
        """The operator that writes a tensor."""
        return self._writers[out]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, with run-time extents at their upper bounds."""
        return tuple(d if isinstance(d, int) else self.size(d) for d in self._tensors[name].shape)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors that no operator writes, in the order of their declaration."""
        return tuple(t.name for t in self.tensors if t.name not in self._writers)

    @cached_property
    def _axes(self) -> dict[str, Axis]:
        return {a.name: a for a in self.axes}

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @cached_property
    def _writers(self) -> dict[str, Operator]:
        return {o.out: o for o in self.operators}

    @cached_property
    def _readers(self) -> dict[str, tuple[Operator, ...]]:
        readers: dict[str, list[Operator]] = {}
        for o in self.operators:
            for tensor in dict.fromkeys(r.tensor for r in sources(o)):
                readers.setdefault(tensor, []).append(o)
        return {tensor: tuple(operators) for tensor, operators in readers.items()}

    @cached_property
    def key(self) -> str:
        """A hash of the canonical text (`canonical`): equal for chains that differ only in
        names."""
        return hashlib.sha256(canonical(self).encode()).hexdigest()

    def __str__(self) -> str:
        return "\n".join(str(o) for o in self.operators)


# --- checking -------------------------------------------------------------------------------


def _check(chain: Chain) -> None:
    if not chain.name.isprintable() or len(chain.name) > LONGEST_NAME:
        raise ChainError(
            f"the chain's name {chain.name[:80]!r} must be one line of at most {LONGEST_NAME} "
            "printable characters"
        )
    if not chain.operators:
        raise ChainError(f"chain '{chain.name}' has no operator")
    if chain.precision not in get_args(ProductPrecision):
        raise ChainError(
            f"chain '{chain.name}' has precision '{chain.precision[:80]}'; use "
            + " or ".join(get_args(ProductPrecision))
        )
    _unique(chain, "axis", [a.name for a in chain.axes])
    _unique(chain, "tensor", [t.name for t in chain.tensors])
    _unique(chain, "operator", [o.out for o in chain.operators])
    for a in chain.axes:
        if not _AXIS.fullmatch(a.name) or len(a.name) > LONGEST_NAME:
            raise ChainError(f"axis '{a.name[:80]}' must be a small letter, then digits if need be")
        low = a.extent.low if isinstance(a.extent, Bounds) else a.extent
        if low < 1 or largest(a.extent) < low:
            raise ChainError(f"axis '{a.name}' has extent {a.extent}; it must be at least 1")
        if largest(a.extent) > LONGEST:
            raise ChainError(f"axis '{a.name}' has extent {a.extent}; it must be at most {LONGEST}")
    for t in chain.tensors:
        _check_tensor(chain, t)
    _check_sizes(chain)
    known = set(chain.inputs)
    for o in chain.operators:
        _check_operator(chain, o, known)
        known.add(o.out)
    _unique(chain, "output", list(chain.outputs))
    for out in chain.outputs:
        if out not in chain._writers:
            raise ChainError(f"output '{out}' is written by no operator")
        _check_no_overlap(chain, chain.tensor(out))


def _unique(chain: Chain, kind: str, names: list[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ChainError(f"{kind} '{name}' of chain '{chain.name}' is defined twice")


def _check_tensor(chain: Chain, t: Tensor) -> None:
    if not _NAME.fullmatch(t.name) or keyword.iskeyword(t.name) or len(t.name) > LONGEST_NAME:
        raise ChainError(
            f"tensor '{t.name[:80]}' must be named by letters, digits and '_', and not be Python's "
            "word"
        )
    if t.dtype not in DTYPES:
        raise ChainError(f"tensor '{t.name}' has dtype '{t.dtype}'; use {', '.join(DTYPES)}")
    for d in t.shape:
        if isinstance(d, str) and d not in chain._axes:
            raise ChainError(f"tensor '{t.name}' has a dimension of unknown axis '{d}'")
        if isinstance(d, int) and not 1 <= d <= LONGEST:
            raise ChainError(f"tensor '{t.name}' has a dimension of {d}; it must be 1 to {LONGEST}")
    if t.strides is not None and len(t.strides) != len(t.shape):
        raise ChainError(
            f"tensor '{t.name}' has {len(t.shape)} dimensions, {len(t.strides)} strides"
        )
    if t.offset < 0 or any(d.stride < 0 for s in t.strides or () for d in digits(s, 1)):
        raise ChainError(
            f"tensor '{t.name}' has offset {t.offset} and strides {t.strides}; none may be "
            f"negative: an index may run backwards, as in A[{_first(chain, t) - 1} - m]"
        )
    for d, s in zip(t.shape, t.strides or (), strict=False):
        positions = d if isinstance(d, int) else largest(chain.extent(d))
        counts = [x.extent for x in digits(s, positions)]
        if min(counts, default=0) < 1 or math.prod(counts) != positions:
            many = " x ".join(map(str, counts)) or "no"
            raise ChainError(
                f"tensor '{t.name}' has strides for {many} positions along one of {positions}"
            )
    _check_padding(chain, t)


def _check_padding(chain: Chain, t: Tensor) -> None:
    along = [d for s in t.strides or () if not isinstance(s, int) for d in s]
    moving = {d.padding for d in along if d.padding is not None}
    if (t.padding or moving) and t.name in chain._writers:
        raise ChainError(f"tensor '{t.name}' has padding, and an operator writes it; pad an input")
    if moving != {*range(len(t.padding))}:
        raise ChainError(f"tensor '{t.name}' has {len(t.padding)} paddings, and dimensions along "
                         f"those with the numbers {sorted(moving)}")  # fmt: skip
    for i, p in enumerate(t.padding):
        if p.value != t.padding[0].value or not math.isfinite(p.value):
            raise ChainError(
                f"tensor '{t.name}' has padding with the values "
                f"{', '.join(str(x.value) for x in t.padding)}; it must be one finite number"
            )
        if p.extent < 1 or p.stride < 1 or p.before < 0:
            raise ChainError(
                f"tensor '{t.name}' has padding around an extent of {p.extent} with stride "
                f"{p.stride}, {p.before} positions before it; use at least 1, 1 and 0"
            )
        if any(d.padding == i and d.stride % p.stride for d in along):
            raise ChainError(
                f"tensor '{t.name}' moves along padding with stride {p.stride} by parts of that"
            )
    for n, s in zip(t.shape, t.strides or (), strict=False):
        padded = not isinstance(s, int) and any(d.padding is not None for d in s)
        if padded and isinstance(n, str) and isinstance(chain.extent(n), Bounds):
            raise ChainError(
                f"tensor '{t.name}' has padding along axis '{n}', whose extent is known at run "
                f"time only; padding needs extents that are numbers"
            )


def _first(chain: Chain, t: Tensor) -> int:
    return chain.shape(t.name)[0] if t.shape else 1


def _check_no_overlap(chain: Chain, t: Tensor) -> None:
    """Raises ChainError where two elements of an output have one address."""
    reach = 0
    every = zip(t.strides or (), chain.shape(t.name), strict=bool(t.strides))
    along = (d for s, n in every for d in digits(s, n))
    for stride, n in sorted((d.stride, d.extent) for d in along):
        if n > 1 and stride <= reach:
            raise ChainError(
                f"output '{t.name}' has strides {t.strides}, by which two of its elements share a "
                f"place; only inputs may repeat elements"
            )
        reach += stride * (n - 1)


def _check_sizes(chain: Chain) -> None:
    """Raises ChainError where an expression, with the maps that it reads inlined, is too deep or
    too long: functions that walk it are recursive."""
    deep, long = dict[str, int](), dict[str, int]()
    for o in chain.operators:
        sizes = [_size(e, deep, long) for e in (o.body, o.domain) if e is not None]
        depth, count = max(d for d, _ in sizes), sum(n for _, n in sizes)
        if depth > DEEPEST or count > LONGEST_BODY:
            raise ChainError(
                f"operator '{o.out}' has {count} operations, {depth} inside one another, with the "
                f"maps that it reads; at most {LONGEST_BODY} and {DEEPEST} are taken: sum over an "
                f"axis, or make some of it a chain of its own"
            )
        deep[o.out], long[o.out] = (depth, count) if o.reduce == "none" else (0, 0)


def _size(e: Expr, deep: Mapping[str, int], long: Mapping[str, int]) -> tuple[int, int]:
    """The depth and the number of operations of an expression with the maps that it reads inlined.

    It does not recurse, since the expression may be very deep.
    """
    depth, count, left = 0, 0, [(e, 0)]
    while left:
        node, above = left.pop()
        count += 1
        if isinstance(node, Read):
            depth = max(depth, above + deep.get(node.tensor, 0))
            count += long.get(node.tensor, 0)
        inner = children(node)
        depth = max(depth, above + bool(inner))
        left += [(child, above + 1) for child in inner]
    return depth, count


def _check_operator(chain: Chain, o: Operator, known: set[str]) -> None:
    where = f"operator '{o.out}'"
    if o.out not in chain._tensors:
        raise ChainError(f"{where} writes a tensor that is not declared")
    used = o.related + axes(o.body) + (axes(o.domain) if o.domain is not None else ())
    for a in used:
        if a not in chain._axes:
            raise ChainError(f"{where} uses axis '{a}', which has no extent")
        if a not in o.related:
            raise ChainError(f"{where} reads along axis '{a}', which it neither keeps nor reduces")
    if len(set(o.related)) != len(o.related):
        raise ChainError(f"{where} names an axis twice among {', '.join(o.related)}")
    if (o.reduce == "none") != (not o.over):
        raise ChainError(f"{where}: a reduction needs axes to reduce over, a map none")
    for a in o.over:
        if a not in axes(o.body) and (o.domain is None or a not in axes(o.domain)):
            raise ChainError(f"{where} reduces over axis '{a}', which its inputs lack")
    if chain.tensor(o.out).dtype in NARROW and (o.reduce != "none" or chain.readers(o.out)):
        raise ChainError(
            f"{where} writes '{o.out}' as {chain.tensor(o.out).dtype}, which only inputs can be, "
            f"and results that nothing reads and no reduction computes; use int32"
        )
    if o.reduce != "none" and chain.tensor(o.out).dtype == "bool":
        raise ChainError(f"{where} reduces into a bool; give '{o.out}' the dtype int32")
    for e in (o.body, o.domain):
        for node in walk(e) if e is not None else ():
            if isinstance(node, Cast) and node.dtype in NARROW:
                raise ChainError(
                    f"{where} casts to {node.dtype}, which only inputs and results can be"
                )
            if isinstance(node, Const) and isinstance(node.value, int) and abs(node.value) >= 2**63:
                raise ChainError(f"{where} has the whole number {node.value}; 64 bits hold less")
    shape = chain.tensor(o.out).shape
    if shape != o.axes:
        raise ChainError(f"{where} keeps axes {o.axes}, but its tensor has dimensions {shape}")
    sources = o.reads + (reads(o.domain) if o.domain is not None else ())
    for r in sources:
        _check_read(chain, where, r, known)


def _check_read(chain: Chain, where: str, r: Read, known: set[str]) -> None:
    if r.tensor not in known:
        later = r.tensor in chain._writers
        why = "is computed only later: a cycle" if later else "is not declared"
        raise ChainError(f"{where} reads tensor '{r.tensor}', which {why}")
    shape = chain.tensor(r.tensor).shape
    if len(shape) != len(r.indices):
        raise ChainError(
            f"{where} reads '{r.tensor}' with {len(r.indices)} indices, "
            f"but it has {len(shape)} dimensions"
        )
    for dimension, index in zip(chain.shape(r.tensor), r.indices, strict=True):
        last = index.offset + sum(c * (chain.size(a) - 1) for a, c in index.terms if c > 0)
        first = index.offset + sum(c * (chain.size(a) - 1) for a, c in index.terms if c < 0)
        if first < 0 or last >= dimension:
            names = ", ".join(index.axes) or "a constant"
            raise ChainError(
                f"{where} reads '{r.tensor}' along axis {names} at {first}..{last}, "
                f"but that dimension has extent {dimension}"
            )


def identifier(name: str) -> str:
    """A chain's name as generated sources have it: at most 60 letters, digits and '_', so that it
    can neither end a comment nor declare an encoding."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", name)[:60].strip("_") or "chain"


# --- canonical form -------------------------------------------------------------------------


def canonical(chain: Chain) -> str:
    """The chain as text, with axes and tensors named by their order: equal for chains that differ
    only in names."""
    letters = {a.name: f"a{i}" for i, a in enumerate(chain.axes)}
    names = {t.name: f"t{i}" for i, t in enumerate(chain.tensors)}
    lines = [f"{letters[a.name]}={a.extent}" for a in chain.axes]
    for t in chain.tensors:
        shape = tuple(letters[d] if isinstance(d, str) else d for d in t.shape)
        padding = f" {t.padding}" if t.padding else ""
        lines.append(
            f"{names[t.name]}={shape} {t.dtype} {t.constant} {t.strides} {t.offset}{padding}"
        )
    lines += [str(renamed(o, names, letters)) for o in chain.operators]
    rounded = [chain.precision] if chain.precision != "float32" else []
    return "\n".join([*lines, *(names[o] for o in chain.outputs), *rounded])


def rewritten(o: Operator, leaf: Callable[[Read | Index], Expr]) -> Operator:
    """The operator with other reads and positions in its body and its domain (expr.rewrite)."""
    domain = rewrite(o.domain, leaf) if o.domain is not None else None
    return replace(o, body=rewrite(o.body, leaf), domain=domain)


def renamed(o: Operator, names: Mapping[str, str], letters: Mapping[str, str]) -> Operator:
    """The operator with other names of tensors, and of axes (`letters`)."""
    return Operator(
        names[o.out],
        tuple(letters[a] for a in o.axes),
        rename(o.body, names, letters),
        o.reduce,
        tuple(letters[a] for a in o.over),
        rename(o.domain, names, letters) if o.domain is not None else None,
    )
