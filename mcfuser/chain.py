"""The tensor program: axes, tensors, operators and the chain they form.

Nothing here knows of loops, devices, or what an operator is called: attention is five operators
like any others. A chain checks itself when it is built.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from mcfuser.errors import ChainError
from mcfuser.expr import (
    DTYPES,
    Call,
    Cast,
    Expr,
    Index,
    Read,
    at,
    axes,
    parse,
    reads,
    rename,
    rewrite,
    text,
)

Reducer = Literal["none", "sum", "max"]
BYTES: Mapping[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
                            "int32": 4, "int64": 8, "bool": 1}  # fmt: skip
_AXIS = re.compile(r"[a-z][0-9]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Bounds:
    """An extent known only at run time, at least `low` and at most `high`."""

    low: int
    high: int


Extent = int | Bounds


def largest(extent: Extent) -> int:
    return extent.high if isinstance(extent, Bounds) else extent


@dataclass(frozen=True, slots=True)
class Axis:
    """A named range of positions; the name is a letter, then digits if need be."""

    name: str
    extent: Extent


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array. A dimension is a number or the name of the axis whose extent it has.

    `strides` and `offset` count elements and describe inputs and outputs as they lie in the
    surrounding graph; without strides the tensor is dense and row-major.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    constant: bool = False
    strides: tuple[int, ...] | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Operator:
    """`out[axes] = reduce over `over`, within `domain`, of body`."""

    out: str
    axes: tuple[str, ...]
    body: Expr
    reduce: Reducer = "none"
    over: tuple[str, ...] = ()
    domain: Expr | None = None

    @property
    def related(self) -> tuple[str, ...]:
        """The axes it iterates over: the paper's related loops."""
        return self.axes + self.over

    def __str__(self) -> str:
        head = f"{self.out}[{', '.join(self.axes)}] = "
        if self.reduce != "none":
            head += f"{self.reduce}[{', '.join(self.over)}] "
        tail = f" where {text(self.domain)}" if self.domain is not None else ""
        return head + text(self.body) + tail


@dataclass(frozen=True, slots=True)
class Product:
    """The roles that axes play in an operator that is a matrix product.

    `left` and `right` are the two reads; rows index only the left, columns only the right,
    depth both and is summed, batch both and is kept.
    """

    left: Read
    right: Read
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    depth: tuple[str, ...]


@dataclass(frozen=True)
class Chain:
    """Operators in the order in which they can run, over named axes and tensors.

    Raises ChainError, naming the operator and the axis or tensor, where they do not fit.
    """

    name: str
    axes: tuple[Axis, ...]
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.outputs and self.operators:
            object.__setattr__(self, "outputs", (self.operators[-1].out,))
        _check(self)

    def extent(self, name: str) -> Extent:
        return self._axes[name].extent

    def size(self, name: str) -> int:
        """The extent of an axis; where it is known at run time only, its upper bound."""
        return largest(self._axes[name].extent)

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def operator(self, out: str) -> Operator:
        return self._writers[out]

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's extents, run-time ones at their upper bound."""
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
    def key(self) -> str:
        """The same for chains that differ only in names: a hash of the canonical text."""
        return hashlib.sha256(canonical(self).encode()).hexdigest()

    def __str__(self) -> str:
        return "\n".join(str(o) for o in self.operators)


def product(operator: Operator) -> Product | None:
    """The roles of a sum over a product of two reads (casts allowed), or None.

    The left operand is the one whose own axes come first in the output.
    """
    body = operator.body
    if operator.reduce != "sum" or not isinstance(body, Call) or body.op != "mul":
        return None
    pair = [_bare(a) for a in body.args]
    if not all(isinstance(p, Read) for p in pair):
        return None
    one, two = (p for p in pair if isinstance(p, Read))
    a, b = set(axes(one)), set(axes(two))
    related = operator.related
    if set(operator.over) - (a & b) or set(related) - (a | b):
        return None
    only = [x for x in operator.axes if (x in a) != (x in b)]
    if not only:
        return None  # a dot product of rows: neither operand is used twice
    if only[0] in b:
        one, two, a, b = two, one, b, a
    return Product(
        one,
        two,
        batch=tuple(x for x in operator.axes if x in a and x in b),
        rows=tuple(x for x in operator.axes if x in a and x not in b),
        columns=tuple(x for x in operator.axes if x in b and x not in a),
        depth=operator.over,
    )


def _bare(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.arg
    return e


def products(chain: Chain) -> tuple[Operator, ...]:
    return tuple(o for o in chain.operators if product(o) is not None)


def batch_axes(chain: Chain) -> tuple[str, ...]:
    """Axes that every operator keeps and that no product tells apart: they only ever bind."""
    kept = [set(o.axes) for o in chain.operators]
    common = set.intersection(*kept) if kept else set()
    for operator in chain.operators:
        if (found := product(operator)) is not None:
            common &= set(found.batch)
    if not products(chain):
        common = set()
    return tuple(a.name for a in chain.axes if a.name in common)


def flops(chain: Chain) -> int:
    """Floating-point operations of the products: two for each element of each iteration space."""
    return sum(2 * math.prod(chain.size(a) for a in o.related) for o in products(chain))


def nbytes(chain: Chain, tensor: str) -> int:
    return math.prod(chain.shape(tensor)) * BYTES[chain.tensor(tensor).dtype]


# --- checking -------------------------------------------------------------------------------


def _check(chain: Chain) -> None:
    if not chain.operators:
        raise ChainError(f"chain '{chain.name}' has no operator")
    _unique(chain, "axis", [a.name for a in chain.axes])
    _unique(chain, "tensor", [t.name for t in chain.tensors])
    _unique(chain, "operator", [o.out for o in chain.operators])
    for a in chain.axes:
        if not _AXIS.fullmatch(a.name):
            raise ChainError(f"axis '{a.name}' must be a small letter, then digits if need be")
        low = a.extent.low if isinstance(a.extent, Bounds) else a.extent
        if low < 1 or largest(a.extent) < low:
            raise ChainError(f"axis '{a.name}' has extent {a.extent}; it must be at least 1")
    for t in chain.tensors:
        _check_tensor(chain, t)
    known = set(chain.inputs)
    for o in chain.operators:
        _check_operator(chain, o, known)
        known.add(o.out)
    for out in chain.outputs:
        if out not in chain._writers:
            raise ChainError(f"output '{out}' is written by no operator")


def _unique(chain: Chain, kind: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ChainError(f"{kind} '{name}' of chain '{chain.name}' is defined twice")


def _check_tensor(chain: Chain, t: Tensor) -> None:
    if not _NAME.fullmatch(t.name):
        raise ChainError(f"tensor '{t.name}' must be named by letters, digits and '_'")
    if t.dtype not in DTYPES:
        raise ChainError(f"tensor '{t.name}' has dtype '{t.dtype}'; use {', '.join(DTYPES)}")
    for d in t.shape:
        if isinstance(d, str) and d not in chain._axes:
            raise ChainError(f"tensor '{t.name}' has a dimension of unknown axis '{d}'")
    if t.strides is not None and len(t.strides) != len(t.shape):
        raise ChainError(
            f"tensor '{t.name}' has {len(t.shape)} dimensions, {len(t.strides)} strides"
        )


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
    shape = chain.tensor(o.out).shape
    if shape != o.axes:
        raise ChainError(f"{where} keeps axes {o.axes}, but its tensor has dimensions {shape}")
    sources = reads(o.body) + (reads(o.domain) if o.domain is not None else ())
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


# --- canonical form -------------------------------------------------------------------------


def canonical(chain: Chain) -> str:
    """The chain's text with axes and tensors named by their order: the same for equal chains."""
    letters = {a.name: f"a{i}" for i, a in enumerate(chain.axes)}
    names = {t.name: f"t{i}" for i, t in enumerate(chain.tensors)}
    lines = [f"{letters[a.name]}={a.extent}" for a in chain.axes]
    for t in chain.tensors:
        shape = tuple(letters[d] if isinstance(d, str) else d for d in t.shape)
        lines.append(f"{names[t.name]}={shape} {t.dtype} {t.constant} {t.strides} {t.offset}")
    lines += [str(_renamed(o, names, letters)) for o in chain.operators]
    return "\n".join([*lines, *(names[o] for o in chain.outputs)])


def _renamed(o: Operator, names: Mapping[str, str], letters: Mapping[str, str]) -> Operator:
    return Operator(
        names[o.out],
        tuple(letters[a] for a in o.axes),
        rename(o.body, names, letters),
        o.reduce,
        tuple(letters[a] for a in o.over),
        rename(o.domain, names, letters) if o.domain is not None else None,
    )


# --- writing and reading --------------------------------------------------------------------

_LINE = re.compile(
    r"\s*(?P<out>\w+)\[(?P<axes>[^\]]*)\]\s*=\s*"
    r"(?:(?P<reduce>sum|max)\[(?P<over>[^\]]*)\]\s+)?(?P<body>.*?)(?:\s+where\s+(?P<domain>.*))?\s*"
)


def parse_operator(line: str) -> Operator:
    """`out[m, h] = sum[n] P[m, n] * V[n, h] where n <= m`, as Operator prints it."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise ChainError(f"'{line}' is not an operator: write out[m, n] = sum[k] A[m, k] * B[k, n]")
    reducer: Reducer = "none"
    if found["reduce"]:
        reducer = "sum" if found["reduce"] == "sum" else "max"
    domain = parse(found["domain"]) if found["domain"] else None
    return Operator(
        found["out"], _names(found["axes"]), parse(found["body"]), reducer,
        _names(found["over"] or ""), domain,
    )  # fmt: skip


def _names(words: str) -> tuple[str, ...]:
    return tuple(w.strip() for w in words.split(",") if w.strip())


def to_json(chain: Chain) -> dict[str, object]:
    """A JSON document that `from_json` reads back; docs/chains.md describes it."""
    return {
        "name": chain.name,
        "axes": {
            a.name: [a.extent.low, a.extent.high] if isinstance(a.extent, Bounds) else a.extent
            for a in chain.axes
        },
        "tensors": {t.name: _tensor_json(t) for t in chain.tensors},
        "operators": [str(o) for o in chain.operators],
        "outputs": list(chain.outputs),
    }


def _tensor_json(t: Tensor) -> dict[str, object]:
    out: dict[str, object] = {"shape": list(t.shape), "dtype": t.dtype}
    if t.constant:
        out["constant"] = True
    if t.strides is not None:
        out["strides"] = list(t.strides)
    if t.offset:
        out["offset"] = t.offset
    return out


def from_json(document: Mapping[str, object]) -> Chain:
    """A chain from its JSON document; tensors that operators write may be left out (float32).

    Raises ChainError where the document is not of that form.
    """
    try:
        operators = tuple(parse_operator(line) for line in _list(document["operators"]))
        given = _dict(document.get("tensors", {}))
        tensors = [_tensor(name, _dict(value)) for name, value in given.items()]
        tensors += [Tensor(o.out, o.axes) for o in operators if o.out not in given]
        return Chain(
            str(document.get("name", "chain")),
            tuple(Axis(n, _extent(v)) for n, v in _dict(document["axes"]).items()),
            tuple(tensors),
            operators,
            tuple(str(o) for o in _list(document.get("outputs", []))),
        )
    except KeyError as error:
        raise ChainError(
            f"the chain document has no {error}; it needs axes and operators"
        ) from None
    except (TypeError, AttributeError) as error:
        raise ChainError(f"the chain document is not of the documented form: {error}") from None


def _list(value: object) -> Sequence[str]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected where {value!r} stands")
    return value


def _dict(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected where {value!r} stands")
    return value


def _extent(value: object) -> Extent:
    if isinstance(value, list) and len(value) == 2:
        return Bounds(int(value[0]), int(value[1]))
    if not isinstance(value, int):
        raise TypeError(f"an extent is a whole number or [low, high], not {value!r}")
    return value


def _tensor(name: str, value: Mapping[str, object]) -> Tensor:
    strides = value.get("strides")
    shape = tuple(d if isinstance(d, int) else str(d) for d in _list(value["shape"]))
    return Tensor(
        name, shape, str(value.get("dtype", "float32")), bool(value.get("constant", False)),
        tuple(int(s) for s in _list(strides)) if strides is not None else None,
        int(str(value.get("offset", 0))),
    )  # fmt: skip


# --- the short forms ------------------------------------------------------------------------


def gemm(batch: int, m: int, n: int, k: int, h: int, dtype: str = "float32") -> Chain:
    """The paper's GEMM chain: C = A x B, E = C x D (Table II's letters)."""
    extents = {"b": batch, "m": m, "n": n, "k": k, "h": h}
    c = f"{dtype}(C[b, m, n])" if dtype != "float32" else "C[b, m, n]"
    return _build(
        f"gemm:{batch},{m},{n},{k},{h}", extents, dtype,
        {"A": "bmk", "B": "bkn", "D": "bnh"}, {"E": "bmh"},
        ["C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]",
         f"E[b, m, h] = sum[n] {c} * D[b, n, h]"],
    )  # fmt: skip


def attention(heads: int, m: int, n: int, k: int, h: int, dtype: str = "float32") -> Chain:
    """softmax(Q K^T / sqrt(k)) V (Table III's letters), from its plain definition."""
    extents = {"b": heads, "m": m, "n": n, "k": k, "h": h}
    p = f"{dtype}(P[b, m, n])" if dtype != "float32" else "P[b, m, n]"
    return _build(
        f"attention:{heads},{m},{n},{k},{h}", extents, dtype,
        {"Q": "bmk", "K": "bnk", "V": "bnh"}, {"O": "bmh"},
        ["S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
         f"X[b, m, n] = S[b, m, n] * {1 / math.sqrt(k)!r}",
         "R[b, m] = max[n] X[b, m, n]",
         "P[b, m, n] = exp(X[b, m, n] - R[b, m])",
         "Z[b, m] = sum[n] P[b, m, n]",
         f"U[b, m, h] = sum[n] {p} * V[b, n, h]",
         "O[b, m, h] = U[b, m, h] / Z[b, m]"],
    )  # fmt: skip


def _build(
    name: str, extents: Mapping[str, int], dtype: str, inputs: Mapping[str, str],
    outputs: Mapping[str, str], lines: Sequence[str],
) -> Chain:  # fmt: skip
    operators = tuple(parse_operator(line) for line in lines)
    given = {**inputs, **outputs}
    tensors = [Tensor(t, tuple(axes), dtype) for t, axes in given.items()]
    tensors += [Tensor(o.out, o.axes) for o in operators if o.out not in given]
    return Chain(
        name, tuple(Axis(a, e) for a, e in extents.items()), tuple(tensors), operators,
        tuple(outputs),
    )  # fmt: skip


def from_text(words: str, dtype: str = "float32") -> Chain:
    """A chain from its short form: `gemm:batch,M,N,K,H` or `attention:heads,M,N,K,H`.

    Raises ChainError naming what was found and the forms that are known.
    """
    kind, _, numbers = words.partition(":")
    forms = {"gemm": gemm, "attention": attention}
    extents = numbers.split(",")
    if kind not in forms or len(extents) != 5 or not all(x.strip().isdigit() for x in extents):
        raise ChainError(
            f"chain '{words}' is neither gemm:batch,M,N,K,H nor attention:heads,M,N,K,H; "
            "give a JSON file for any other"
        )
    b, m, n, k, h = (int(x) for x in extents)
    return forms[kind](b, m, n, k, h, dtype)


# --- parts of chains ------------------------------------------------------------------------


def subchain(chain: Chain, outs: Sequence[str], name: str) -> Chain:
    """The chain of some of a chain's operators; what they read and do not write is input."""
    operators = tuple(o for o in chain.operators if o.out in outs)
    read_names = {r.tensor for o in operators for r in _sources(o)}
    later = {r.tensor for o in chain.operators if o.out not in outs for r in _sources(o)}
    produced = tuple(o.out for o in operators if o.out in later or o.out in chain.outputs)
    used_axes = {a for o in operators for a in o.related}
    kept = tuple(
        t for t in chain.tensors if t.name in read_names or any(t.name == o.out for o in operators)
    )
    used_axes |= {d for t in kept for d in t.shape if isinstance(d, str)}
    letters = tuple(a for a in chain.axes if a.name in used_axes)
    return Chain(name, letters, kept, operators, produced)


def _sources(o: Operator) -> Iterator[Read]:
    yield from reads(o.body)
    if o.domain is not None:
        yield from reads(o.domain)


def parts(chain: Chain) -> tuple[Chain, ...]:
    """The chain unfused: each product with its epilogue is a chain of one, and what lies between
    products (a softmax, a norm) is a chain of its own."""
    groups: list[list[Operator]] = []
    for o in chain.operators:
        if groups and product(o) is None and _continues(groups[-1], o):
            groups[-1].append(o)
        else:
            groups.append([o])
    if len(groups) == 1:
        return (chain,)
    return tuple(
        subchain(chain, [o.out for o in group], f"{chain.name}/{i + 1}")
        for i, group in enumerate(groups)
    )


def _continues(group: Sequence[Operator], o: Operator) -> bool:
    """It belongs to the operators before it: an epilogue of their product, or no product there."""
    head = group[0]
    if product(head) is None:
        return True
    return o.reduce == "none" and set(o.axes) == set(head.axes)


def inline(chain: Chain, out: str) -> Chain:
    """The chain with one map written into the bodies that read it."""
    gone = chain.operator(out)
    if gone.reduce != "none" or gone.domain is not None or out in chain.outputs:
        raise ChainError(f"operator '{out}' is not a map between operators and cannot be inlined")

    def leaf(node: Read | Index) -> Expr:
        if not isinstance(node, Read) or node.tensor != out:
            return node
        return at(gone.body, dict(zip(gone.axes, node.indices, strict=True)))

    operators = tuple(
        replace(o, body=rewrite(o.body, leaf)) for o in chain.operators if o.out != out
    )
    tensors = tuple(t for t in chain.tensors if t.name != out)
    return replace(chain, operators=operators, tensors=tensors)
