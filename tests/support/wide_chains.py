"""Random chains of every class that the language has, and inputs for them.

`random_chains` draws what models do: products in a row. Here anything may follow anything. The
name of an input says what it may hold, so that `values` can draw it:

    X  any number         G  positive ones, for what divides or is rooted
    M  added to scores    L  small whole numbers (lengths, targets)    B  conditions
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from mcfuser.chain import (
    Bounds,
    Chain,
    Padding,
    Tensor,
    digits,
    fixed,
    from_json,
    products,
    sources,
)
from mcfuser.errors import ChainError
from mcfuser.expr import NARROW, Call, Cast, Const, Index, Read, walk

MODES = ("plain", "negative", "positive", "scaled", "zeros", "masked")
OPERATORS = 7
PLACES = 2500
"""The most positions of an operator: what the plain evaluator does in some milliseconds."""


@dataclass(frozen=True)
class Case:
    """A chain, and values for the extents that are known at run time only."""

    chain: Chain
    extents: Mapping[str, int] = field(default_factory=dict)

    @property
    def fixed(self) -> Chain:
        return fixed(self.chain, self.extents) if self.extents else self.chain

    def __repr__(self) -> str:
        tensors = [str(self.chain.tensor(t)) for t in (*self.chain.inputs, *self.chain.outputs)]
        sizes = {a.name: a.extent for a in self.chain.axes}
        return "\n".join(["", f"{sizes} {self.extents}", *tensors, str(self.chain), ""])


@dataclass(frozen=True)
class Thing:
    """What an operator may read, over some axes, and how large its values may become."""

    text: str
    axes: tuple[str, ...]
    positive: bool = False
    large: bool = False


@dataclass
class _Dimension:
    extent: int
    name: str | None = None


@dataclass
class _Draft:
    """A chain in the making."""

    rng: Random
    extents: dict[str, int]
    tensors: dict[str, dict[str, object]] = field(default_factory=dict)
    dimensions: dict[str, list[_Dimension]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    results: list[Thing] = field(default_factory=list)

    def chance(self, share: float) -> bool:
        return self.rng.randrange(100) < 100 * share

    def pick(self, those: Sequence[Any]) -> Any:
        return those[self.rng.randrange(len(those))]

    def some(self, those: Sequence[str], least: int = 0) -> tuple[str, ...]:
        """A part of them, in any order."""
        mixed = list(those)
        for i in range(len(mixed) - 1, 0, -1):
            j = self.rng.randrange(i + 1)
            mixed[i], mixed[j] = mixed[j], mixed[i]
        return tuple(mixed[: self.rng.randrange(min(least, len(mixed)), len(mixed) + 1)])

    def mixed(self, those: Sequence[str]) -> tuple[str, ...]:
        return self.some(those, len(those))

    def number(self) -> str:
        return self.pick(["0.5", "1.25", "3.0", "0.1", "2.0", "-0.75", "1.0"])

    def add(
        self, name: str, kept: Sequence[str], text: str, *, over: Sequence[str] = (),
        reduce: str = "", where: str = "", dtype: str = "", positive: bool = False,
        large: bool = False,
    ) -> Thing:  # fmt: skip
        """Another operator; its result."""
        out = f"{name}{len(self.lines)}"
        head = f"{out}[{', '.join(kept)}] = " + (f"{reduce}[{', '.join(over)}] " if over else "")
        self.lines.append(head + text + (f" where {where}" if where else ""))
        if dtype:
            self.tensors[out] = {"shape": list(kept), "dtype": dtype}
        thing = Thing(f"{out}[{', '.join(kept)}]", tuple(kept), positive, large)
        if kept:
            self.results.append(thing)
            self.dimensions[out] = [_Dimension(self.extents[a], a) for a in kept]
        return thing


# --- leaves ---------------------------------------------------------------------------------


def leaf(d: _Draft, within: Sequence[str], role: str = "X") -> Thing:
    """Something over just these axes: an input, or a result, now and then at other indices."""
    fitting = [t for t in d.results if set(t.axes) == set(within)]
    if role == "X" and fitting and d.chance(0.6):
        return d.pick(fitting[-3:])
    results = [t.text.split("[")[0] for t in d.results]
    old = [n for n in d.dimensions if n.startswith(role)]
    elsewhere = role == "X" and bool(results) and d.chance(0.05)
    if elsewhere or (old and d.chance(0.3)):
        name = d.pick(results if elsewhere else old)
        indices = _again(d, name, within)
        if indices is not None:
            return Thing(f"{name}[{', '.join(indices)}]", tuple(within), role == "G")
    return _input(d, within, role)


def other(d: _Draft, within: Sequence[str], role: str = "X") -> Thing:
    """Something over some of these axes."""
    fitting = [t for t in d.results if t.axes and set(t.axes) <= set(within)]
    if role == "X" and fitting and d.chance(0.5):
        return d.pick(fitting)
    return leaf(d, d.some(within, 1), role)


def _input(d: _Draft, within: Sequence[str], role: str) -> Thing:
    name = f"{role}{sum(n.startswith(role) for n in d.dimensions)}"
    indices: list[str] = []
    dimensions: list[_Dimension] = []
    rest = list(d.mixed(within) if d.chance(0.5) else within)
    if len(rest) > 1 and d.chance(0.06):
        a, b = rest.pop(), rest.pop()
        indices.append(f"{a} + {b}")
        dimensions.append(_Dimension(d.extents[a] + d.extents[b] - 1))
    for a in rest:
        index, dimension = _dimension(d, a)
        indices.append(index)
        dimensions.append(dimension)
    if not dimensions or d.chance(0.05):
        indices.append(str(d.rng.randrange(3)))
        dimensions.append(_Dimension(3))
    d.dimensions[name] = dimensions
    shape = [x.extent if x.name is None else x.name for x in dimensions]
    d.tensors[name] = {"shape": shape, "dtype": _dtype(d, role)}
    if d.chance(0.1):
        d.tensors[name]["constant"] = True
    _lay_out(d, name, zero=True)
    return Thing(f"{name}[{', '.join(indices)}]", tuple(within), role == "G")


def _dtype(d: _Draft, role: str) -> str:
    if role == "L":
        return d.pick(["int32", "int64"] * 2 + ["int8", "uint8", "int16"])
    if role == "B":
        return "bool"
    return d.pick(["float32"] * 16 + ["float16", "float16", "bfloat16", "float64"])


def _dimension(d: _Draft, a: str) -> tuple[str, _Dimension]:
    """An index along an axis and the dimension that it reads."""
    n = d.extents[a]
    if d.chance(0.85):
        return a, _Dimension(n, a)
    shift, more = d.rng.randrange(1, 4), d.rng.randrange(2)
    return d.pick([
        (f"{a} + {shift}", _Dimension(n + shift + more)),
        (f"2*{a} + {more}", _Dimension(2 * n + more)),
        (f"{n - 1 + more} - {a}", _Dimension(n + more)),
        (a, _Dimension(n + more)),
    ])  # fmt: skip


def _again(d: _Draft, name: str, within: Sequence[str]) -> list[str] | None:
    """Indices that read a tensor along just these axes, none where they do not fit."""
    dimensions = d.dimensions[name]
    if len(within) > len(dimensions):
        return None
    rest = d.rng.randrange(len(dimensions) - len(within) + 1) if d.chance(0.5) else 0
    wanted: list[str | None] = [*d.mixed(within)]
    wanted[rest:rest] = [None] * (len(dimensions) - len(within))
    found = []
    for a, dimension in zip(wanted, dimensions, strict=True):
        room = dimension.extent - (d.extents[a] if a else 1)
        if room < 0:
            return None
        shift = d.rng.randrange(room + 1) if d.chance(0.5) or not a else 0
        found.append(f"{a} + {shift}" if a and shift else a or str(shift))
    return found


def _lay_out(d: _Draft, name: str, zero: bool) -> None:
    """Now and then strides and an offset: dimensions in any order, gaps, and repetitions."""
    if not d.chance(0.15):
        return
    dimensions = d.dimensions[name]
    strides, step = [0] * len(dimensions), d.pick([1, 1, 2])
    for i in d.mixed([str(i) for i in range(len(dimensions))]):
        if zero and d.chance(0.15):
            continue
        strides[int(i)] = step
        step = step * dimensions[int(i)].extent + d.pick([0, 0, 1, 3])
    d.tensors[name]["strides"] = strides
    if d.chance(0.5):
        d.tensors[name]["offset"] = d.rng.randrange(1, 9)
    if zero and name[0] not in "BG" and d.chance(0.4):
        d.tensors[name]["padding"] = [
            _padding(d, i, dimensions[i].extent, strides[i])
            for i in range(len(dimensions))
            if strides[i] and d.chance(0.5)
        ]


def _padding(d: _Draft, dimension: int, extent: int, stride: int) -> dict[str, object]:
    """Zeros around an array whose dimension has fewer positions than the tensor's."""
    kept = d.rng.randrange(1, extent + 1)
    before = d.rng.randrange(extent - kept + 1)
    return {"dimensions": [dimension], "extent": kept, "stride": stride, "before": before}


def position(d: _Draft, within: Sequence[str]) -> str:
    return d.pick(within) if within else "1"


def _bits(d: _Draft, within: Sequence[str]) -> str:
    """Some bits of a whole number."""
    whole = other(d, within, "L").text
    return f"bit_and(shift_right({whole}, {d.pick(['0', '1', '4'])}), {d.pick(['1', '3', '15'])})"


def condition(d: _Draft, within: Sequence[str], reals: bool = True) -> str:
    """A condition on positions, on inputs, and, in a body, on real values."""
    a, b = position(d, within), position(d, within)
    c = d.rng.randrange(-2, 6)
    forms: list[Callable[[], str]] = [
        lambda: f"{a} <= {b} + {c}" if a != b else f"{a} < {c}",
        lambda: f"{a} <= {b} + {c} and {b} - {a} < 3",
        lambda: f"{a} != {max(c, 0)}",
        lambda: f"{a} + {b} < {c + 3} or {a} == 0",
        lambda: f"{a} < {other(d, within, 'L').text}",
        lambda: f"{a} == {other(d, within, 'L').text}",
        lambda: other(d, within, "B").text,
        lambda: f"not {other(d, within, 'B').text}",
    ]
    if reals:
        forms += [lambda: f"{other(d, within).text} > 0.25"] * 2
        forms += [lambda: f"{other(d, within).text} <= {other(d, within).text}"]
    return d.pick(forms)()


def where(d: _Draft, within: Sequence[str], share: float = 0.3) -> str:
    if not d.chance(share):
        return ""
    if d.chance(0.08):
        return f"{position(d, within)} < 0"
    return condition(d, within, reals=False)


def value(d: _Draft, within: Sequence[str], depth: int = 2) -> Thing:
    """An expression over these axes, each of which it depends on."""
    main = leaf(d, within)
    for _ in range(d.rng.randrange(depth + 1)):
        main = _applied(d, main, within)
    return main


def _applied(d: _Draft, x: Thing, within: Sequence[str]) -> Thing:
    t = x.text
    if x.large:
        return Thing(d.pick(["tanh({})", "min(max({}, -2.0), 2.0)"]).format(t), x.axes)
    forms: list[Callable[[], tuple[str, bool]]] = [
        lambda: (f"({t} * {d.number()})", False),
        lambda: (f"({t} + {other(d, within).text})", False),
        lambda: (f"({t} - {other(d, within).text})", False),
        lambda: (f"({t} * {other(d, within).text})", False),
        lambda: (f"max({t}, {other(d, within).text})", False),
        lambda: (f"min({t}, {d.number()})", False),
        lambda: (f"({t} + {other(d, within, 'M').text})", False),
        lambda: (f"({t} / {other(d, within, 'G').text})", False),
        lambda: (f"({t} * {other(d, within, 'B').text})", False),
        lambda: (f"({t} + {other(d, within, 'L').text})", False),
        lambda: (f"({t} + {_bits(d, within)})", False),
        lambda: (f"({t} - 0.1 * {position(d, within)})", False),
        lambda: (f"({t} + {position(d, within)})", False),
        lambda: (f"select({condition(d, within)}, {t}, {other(d, within).text})", False),
        lambda: (f"select({condition(d, within)}, {t}, {d.number()})", False),
        lambda: (f"(-{t})", False),
        lambda: (f"tanh({t})", False),
        lambda: (f"erf({t})", False),
        lambda: (f"floor({t})", False),
        lambda: (f"round({t})", False),
        lambda: (f"({t} / (1.0 + exp(-{t})))", False),
        lambda: (f"{d.pick(['float16', 'bfloat16', 'float32'])}({t})", False),
        lambda: (f"{d.pick(['int32', 'int64'])}({t} * 3.0)", False),
        lambda: (f"float32({condition(d, within)})", False),
        lambda: (f"abs({t})", True),
        lambda: (f"sqrt(abs({t}) + 0.1)", True),
        lambda: (f"log({t} * {t} + 0.5)", False),
        lambda: (f"exp(-abs({t}))", True),
        lambda: (f"exp2(tanh({t}))", True),
        lambda: (f"pow({t}, 2.0)", True),
        lambda: (f"({other(d, within, 'G').text} ** {d.number()} + {t})", False),
    ]
    text, positive = d.pick(forms)()
    return Thing(text, x.axes, positive, "exp" not in text and ("*" in text or "pow" in text))


# --- operators ------------------------------------------------------------------------------


def _split(d: _Draft, reduced: int = 0) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Axes to keep and to reduce: mostly one or two to keep and one to reduce."""
    every = list(d.mixed(list(d.extents)))
    count = reduced or (2 if len(every) > 2 and d.chance(0.15) else 1)
    over, rest = every[:count], every[count:]
    keep = rest[: d.pick([0, 1, 1, 1, 1, 2, 2, 2, 3])]
    return tuple(keep), tuple(over)


def _cast(d: _Draft, text: str) -> str:
    return f"{d.pick(['float16', 'bfloat16'])}({text})" if d.chance(0.15) else text


def product(d: _Draft) -> None:
    every = d.mixed(list(d.extents))
    depth, m, rest = every[0], every[1], every[2:]
    n = rest[:1]
    lead = rest[1:2] if d.chance(0.4) else ()
    left = leaf(d, d.mixed((*lead, m, depth)))
    right = leaf(d, d.mixed((*(lead if d.chance(0.6) else ()), depth, *n)))
    kept = d.mixed((*lead, m, *n)) if d.chance(0.4) else (*lead, m, *n)
    operands = [_cast(d, left.text), _cast(d, right.text)]
    text = " * ".join(d.mixed(operands))
    domain = where(d, (*kept, depth), 0.15)
    d.add("C", kept, text, over=(depth,), reduce="sum", where=domain, large=True)


def convolution(d: _Draft) -> None:
    every = d.mixed(list(d.extents))
    m, k, rest = every[0], every[1], every[2:]
    step = d.pick(["", "", "2*"])
    name = f"X{sum(n.startswith('X') for n in d.dimensions)}"
    reach = (2 if step else 1) * (d.extents[m] - 1) + d.extents[k]
    d.dimensions[name] = [_Dimension(reach), *(_Dimension(d.extents[a], a) for a in rest[:1])]
    d.tensors[name] = {"shape": [reach, *rest[:1]], "dtype": _dtype(d, "X")}
    read = f"{name}[{', '.join([f'{step}{m} + {k}', *rest[:1]])}]"
    weights = leaf(d, (k, *rest[:2]))
    over = (k, *rest[:1]) if d.chance(0.6) else (k,)
    kept = tuple(a for a in (m, *rest[:2]) if a not in over)
    if d.chance(0.3):
        d.add("Y", kept or (m,), read, over=over, reduce=d.pick(["max", "sum"]))
    else:
        d.add("Y", kept, f"{read} * {weights.text}", over=over, reduce="sum", large=True)


def mapped(d: _Draft) -> None:
    last = d.results[-1].axes if d.results and d.chance(0.6) else ()
    kept = last or d.some(list(d.extents), 1)
    kept = d.mixed(kept) if d.chance(0.2) else kept
    x = _applied(d, value(d, kept), kept)
    dtype = d.pick(["", "", "", "float16", "bfloat16"]) if d.chance(0.3) else ""
    d.add("T", kept, x.text, where=where(d, kept, 0.1), dtype=dtype, positive=x.positive)


def quotient(d: _Draft) -> None:
    """Something over a positive input, a sum, or one and a sum."""
    if not d.results:
        mapped(d)
    kept = d.results[-1].axes
    top, bottom = leaf(d, kept), other(d, kept)
    form = d.pick(["{x} / (1.0 + {y} * {y})", "{x} / {y}", "{x} / (abs({y}) + 0.5)"])
    d.add("T", kept, form.format(x=top.text, y=bottom.text))


def reduction(d: _Draft) -> None:
    kept, over = _split(d)
    reducer = d.pick(["sum", "max"])
    x = value(d, (*kept, *over))
    d.add(
        "R", kept, x.text, over=over, reduce=reducer, where=where(d, (*kept, *over)),
        positive=x.positive and reducer == "max", large=reducer == "sum",
    )  # fmt: skip


def nested(d: _Draft) -> None:
    """A reduction of a reduction's result over another axis."""
    if len(d.extents) < 2:
        return reduction(d)
    kept, over = _split(d, 2)
    x = value(d, (*kept, *over), 1)
    first, second = over
    inner = (*kept, second)
    name = d.add("S", inner, x.text, over=(first,), reduce=d.pick(["sum", "max"]),
                 where=where(d, (*inner, first)))  # fmt: skip
    form = d.pick(["{s}", "{s}", "{s} * {s}", "{s} * {y}", "exp(0.1 * {s})", "tanh({s})"])
    text = form.format(s=name.text, y=other(d, inner).text)
    d.add("Q", kept, text, over=(second,), reduce=d.pick(["sum", "max"]),
          where=where(d, inner), large=True)  # fmt: skip
    return None


def subset(d: _Draft) -> None:
    """An operator that reads a reduction over a strict subset of its own reduced axes."""
    if len(d.extents) < 2:
        return reduction(d)
    kept, over = _split(d, 2)
    x = leaf(d, (*kept, *over)).text
    inner = (*kept, over[1])
    same = where(d, (*kept, *over), 0.2)
    reducer = d.pick(["sum", "max"])
    s = d.add("S", inner, x, over=(over[0],), reduce=reducer, where=same, large=True).text
    forms = ["{x} * {s}", "{x} - {s}", "tanh({x} - {s})", "abs({x} - 0.5 * {s})", "{x} + {s}"]
    forms += ["exp({x} - {s})", "exp({x} - {s}) * {y}"] * 2 if reducer == "max" else []
    text = d.pick(forms).format(x=x, s=s, y=other(d, (*kept, *over)).text)
    d.add("Z", kept, text, over=d.mixed(over), reduce=d.pick(["sum", "sum", "max"]),
          where=same if d.chance(0.7) else where(d, (*kept, *over)), large=True)  # fmt: skip
    return None


ROLLED = (
    ("max", "exp({x} - {r}) * {y}"), ("sum", "exp({r} - {x})"), ("sum", "exp({x} - {r}) * {y}"),
    ("sum", "exp({x} - {r})"), ("sum", "exp({x} - {r})"), ("sum", "exp2(({x} - {r}) * 0.5)"),
    ("sum", "{x} - {r}"), ("max", "({x} - {r}) * -0.75"), ("max", "{x} + {r}"),
    ("sum", "max({x} - {r}, -1.0)"), ("sum", "{x} == {r}"), ("sum", "{x} * {r}"),
    ("max", "select({x} == {r}, {n}, -1)"), ("max", "select({x} == {r}, {n}, -1)"),
    ("sum", "select({x} - {r} > -1.0, {x}, 0.0)"), ("max", "exp({x} - {r})"),
    ("sum", "exp({x} - 2.0 * {r})"), ("sum", "exp({x} - {r}) * ({x} - {r})"),
    ("sum", "({x} - {r}) * ({x} - {r})"), ("max", "abs({x} - {r})"), ("sum", "{y} * ({x} - {r})"),
    ("max", "{x} * {r}"), ("max", "{y} - {r}"), ("sum", "tanh({x} - {r})"),
)  # fmt: skip


def rolled(d: _Draft) -> None:
    """Reductions that read a maximum over the same axis."""
    kept, over = _split(d)
    space = (*kept, *over)
    x = value(d, space, 2)
    same = where(d, space)
    r = d.add("R", kept, x.text, over=over, reduce="max", where=same).text
    for _ in range(d.pick([1, 1, 2])):
        reducer, form = d.pick(ROLLED)
        n = over[0]
        text = form.format(x=x.text, r=r, y=other(d, space).text, n=n)
        dtype = d.pick(["int32", "int64", ""]) if "==" in form else ""
        domain = same if d.chance(0.75) else where(d, space)
        d.add("Z", kept, text, over=over, reduce=reducer, where=domain, dtype=dtype)


def softmax(d: _Draft) -> None:
    """A softmax over one or two axes, some of its parts missing, and a product with it."""
    kept, over = _split(d)
    space = (*kept, *over)
    same = where(d, space)
    x = value(d, space, 2).text
    if d.chance(0.4):
        x = f"({x} + {leaf(d, d.some(space, 1), 'M').text})"
    r = d.add("R", kept, x, over=over, reduce="max", where=same).text
    p = d.add("P", space, f"exp({x} - {r})", positive=True).text
    z = d.add("Z", kept, p, over=over, reduce="sum", where=same, positive=True).text
    if d.chance(0.3):
        d.add("H", kept, f"{r} + log({z})")
    new = [a for a in d.extents if a not in space][:1]
    weights = leaf(d, (*over, *new)).text
    if d.chance(0.5):
        d.add("O", (*kept, *new), f"{_cast(d, f'{p} / {z}')} * {weights}", over=over, reduce="sum",
              where=same)  # fmt: skip
        return
    u = d.add("U", (*kept, *new), f"{p} * {weights}", over=over, reduce="sum", where=same).text
    d.add("O", (*kept, *new), f"{u} / {z}")


MOVING = (
    ("sum", "({x} - {s} / {c}) * ({x} - {s} / {c})"), ("sum", "{x} * {s}"), ("max", "{x} * {s}"),
    ("sum", "abs({x} - {s} / {c})"), ("max", "{x} - {s} / {c}"), ("max", "exp(0.1 * {x}) * {s}"),
    ("sum", "{x} / (1.0 + {s} * {s})"), ("sum", "{x} + {s}"), ("sum", "tanh({x} - {s} / {c})"),
    ("sum", "select({x} > {s} / {c}, {x}, 0.0)"), ("sum", "({x} - {s} / {c}) * {y}"),
    ("max", "abs({x}) / (abs({s}) + 0.5)"), ("sum", "{x} / {s}"), ("max", "max({x}, {s})"),
    ("sum", "exp(0.1 * {x} - 0.1 * {s})"), ("max", "{y} + {s}"), ("sum", "{x} * {s} * {s}"),
)  # fmt: skip


def moving(d: _Draft) -> None:
    """Reductions that read a sum over the same axis."""
    kept, over = _split(d)
    space = (*kept, *over)
    x = value(d, space, 1)
    same = where(d, space, 0.2)
    s = d.add("S", kept, x.text, over=over, reduce="sum", where=same, large=True).text
    for _ in range(d.pick([1, 1, 2])):
        reducer, form = d.pick(MOVING)
        text = form.format(x=x.text, s=s, c=_count(d, over), y=other(d, space).text)
        domain = same if d.chance(0.75) else where(d, space)
        d.add("V", kept, text, over=over, reduce=reducer, where=domain, large=True)


def _count(d: _Draft, over: Sequence[str]) -> str:
    """Positions along some axes, as a number."""
    return str(float(np.prod([d.extents[a] for a in over])))


def norm(d: _Draft) -> None:
    """A shift by the mean, a variance, a scale, perhaps a product."""
    kept, over = _split(d)
    space = (*kept, *over)
    x, c = value(d, space, 1).text, _count(d, over)
    shift = x
    if d.chance(0.7):
        s = d.add("S", kept, x, over=over, reduce="sum", large=True).text
        shift = f"({x} - {s} / {c})"
        if d.chance(0.5):
            shift = d.add("D", space, f"{x} - {s} / {c}").text
    v = d.add("V", kept, f"{shift} * {shift}", over=over, reduce="sum", positive=True).text
    scale = d.pick(["sqrt({v} / {c} + 1e-05)", "({v} / {c} + 0.01)", "(sqrt({v}) + 1.0)"])
    text = f"{shift} / {scale.format(v=v, c=c)} * {other(d, space).text}"
    if d.chance(0.5):
        d.add("N", space, text, dtype=d.pick(["", "", "float16"]))
        return
    new = [a for a in d.extents if a not in space][:1]
    d.add("Y", (*kept, *new), f"{_cast(d, text)} * {leaf(d, (*over, *new)).text}", over=over,
          reduce="sum", large=True)  # fmt: skip


def whole(d: _Draft) -> None:
    """Whole numbers and conditions as results."""
    kept, over = _split(d)
    space = (*kept, *over)
    a, dtype = position(d, space), d.pick(["int32", "int64"])
    c = condition(d, space)
    kind = d.pick([0, 1, 2, 2, 3, 4, 5, 6])
    if kind == 0:
        d.add("I", space, f"{a} * 2 - {position(d, space)}", dtype=dtype)
    elif kind == 1:
        d.add("I", kept, c, over=over, reduce="sum", where=_naming(d, over, c), dtype=dtype)
    elif kind == 2:
        d.add("K", space, c, dtype="bool")
    elif kind == 3:
        d.add("I", kept, f"select({c}, {over[0]}, -1)", over=over, reduce="max", dtype=dtype,
              where=_naming(d, over[1:], c))  # fmt: skip
    elif kind == 4:
        target = leaf(d, kept, "L").text if kept else "1"
        x = leaf(d, space).text
        d.add("Y", kept, f"select({over[0]} == {target}, {x}, 0.0)", over=over, reduce="sum")
    elif kind == 5:
        x = leaf(d, space).text
        d.add("I", kept, f"{x} * 4.0", over=over, reduce=d.pick(["sum", "max"]), dtype=dtype,
              where=where(d, space))  # fmt: skip
    else:
        ints = leaf(d, space, "L").text
        d.add("I", kept, f"{ints} * {a} + {other(d, space, 'B').text}", over=over,
              reduce=d.pick(["sum", "max"]), dtype=d.pick([dtype, ""]))  # fmt: skip


def _naming(d: _Draft, over: Sequence[str], text: str) -> str:
    """A domain that names every reduced axis, so that the operator does."""
    return " and ".join(f"{a} < {d.extents[a]}" for a in over)


STEPS: Sequence[tuple[int, Callable[[_Draft], None]]] = (
    (5, product), (2, convolution), (3, mapped), (2, quotient), (4, reduction), (3, nested),
    (2, subset), (4, rolled), (3, softmax), (3, moving), (3, norm), (5, whole),
)  # fmt: skip


# --- chains ---------------------------------------------------------------------------------


def drawn(rng: Random) -> Case:
    """A chain with one to seven operators, drawn by this generator."""
    while True:
        case = _attempt(rng)
        if case is not None:
            return case


def _attempt(rng: Random) -> Case | None:
    d = _Draft(rng, {})
    d.extents = _extents(d)
    wanted = d.rng.randrange(1, OPERATORS + 1)
    steps = [step for weight, step in STEPS for _ in range(weight)]
    if len(d.extents) < 2:
        steps = [s for s in steps if s not in (product, convolution)]
    while len(d.lines) < wanted:
        d.pick(steps)(d)
    if len(d.lines) > OPERATORS:
        return None
    outputs = _outputs(d)
    for name in outputs:
        _store(d, name)
    document = {
        "name": "wide", "axes": _axes(d), "tensors": d.tensors, "operators": d.lines,
        "outputs": outputs,
    }  # fmt: skip
    try:
        chain = from_json(document)
    except ChainError:
        return None
    if any(np.prod([chain.size(a) for a in o.related]) > PLACES for o in chain.operators):
        return None
    return _at_run_time(d, chain, document) or Case(chain)


def _extents(d: _Draft) -> dict[str, int]:
    names = d.pick(["m", "mn", "mn", "mnk", "mnk", "mnk", "mnkh", "mnkh", "bmnk", "bmnkh"])
    high = 9 if len(names) < 4 else 6
    extents = {a: 1 + d.rng.randrange(2 if a == "b" else high) for a in names}
    if len(names) < 4 and d.chance(0.15):
        extents[d.pick(names)] = d.rng.randrange(10, 21)
    return extents


def _axes(d: _Draft) -> dict[str, object]:
    """The axes that something uses, with their extents; now and then the others, too."""
    text = " ".join([*d.lines, str(d.tensors)])
    used = {a: n for a, n in d.extents.items() if re.search(rf"\b{a}\b", text)}
    return dict(d.extents) if d.chance(0.05) else dict(used)


def _outputs(d: _Draft) -> list[str]:
    """What nothing reads, and now and then other results, in any order."""
    names = [line.split("[")[0] for line in d.lines]
    bodies = [line.split("=", 1)[1] for line in d.lines]
    unread = [n for n in names if not any(f"{n}[" in b for b in bodies)]
    chosen = [n for n in names if n in unread or d.chance(0.15)]
    return list(d.mixed(chosen)) if d.chance(0.3) else chosen


def _store(d: _Draft, name: str) -> None:
    """The dtype and the layout of an output."""
    line = next(x for x in d.lines if x.startswith(f"{name}["))
    kept = [a for a in line[line.index("[") + 1 : line.index("]")].split(", ") if a]
    d.tensors.setdefault(name, {"shape": kept, "dtype": "float32"})
    if d.tensors[name]["dtype"] == "float32" and d.chance(0.1):
        d.tensors[name]["dtype"] = d.pick(["float16", "bfloat16", "float64"])
    computed = line.split(" = ", 1)[1]
    read = any(f"{name}[" in x.split(" = ", 1)[1] for x in d.lines)
    if not read and not computed.startswith(("sum[", "max[")) and d.chance(0.2):
        d.tensors[name]["dtype"] = d.pick(NARROW)
    d.dimensions.setdefault(name, [])
    if kept:
        _lay_out(d, name, zero=False)


def _at_run_time(d: _Draft, chain: Chain, document: dict[str, object]) -> Case | None:
    """The chain with one extent known at run time only; none where it would not fit another."""
    if not d.chance(0.1):
        return None
    name = d.pick([a.name for a in chain.axes])
    high = d.extents[name]
    low = d.rng.randrange(1, high + 1)
    axes = {a.name: [low, high] if a.name == name else a.extent for a in chain.axes}
    tensors = {
        t: {k: v for k, v in x.items() if k not in ("strides", "offset", "padding")}
        for t, x in d.tensors.items()
    }
    bounded = from_json({**document, "axes": axes, "tensors": tensors})
    try:
        fixed(bounded, {name: low})
    except ChainError:
        return None
    return Case(bounded, {name: d.rng.randrange(low, high + 1)})


def wide() -> st.SearchStrategy[Case]:
    """Chains of every class; a failing one is made smaller by Hypothesis."""
    return st.randoms(use_true_random=False).map(drawn)


# --- what a case has ------------------------------------------------------------------------


def facts(case: Case) -> Iterator[str]:
    """The classes that a case belongs to, each at most once."""
    chain = case.chain
    yield "all"
    nodes = [n for o in chain.operators for e in (o.body, o.domain) if e for n in walk(e)]
    yield from _of_tensors(chain)
    yield from _of_operators(chain)
    reads = {n for n in nodes if isinstance(n, Read)}
    own = {o.out: o.axes for o in chain.operators}
    tensors = [r.tensor for r in reads]
    calls = {n.op for n in nodes if isinstance(n, Call)}
    tests = {
        "several outputs": len(chain.outputs) > 1,
        "no product": not products(chain),
        "products": len(products(chain)) > 1,
        "positions": any(isinstance(n, Index) for n in nodes),
        "select": "select" in calls,
        "casts": any(isinstance(n, Cast) for n in nodes),
        "read twice": any(tensors.count(t) > 1 for t in tensors),
        "shifted": any(i.offset or any(c != 1 for _, c in i.terms) for r in reads
                       for i in r.indices if i.terms),
        "sum of axes": any(len(i.terms) > 1 for r in reads for i in r.indices),
        "constant index": any(not i.terms for r in reads for i in r.indices),
        "results elsewhere": any(r.tensor in own and tuple(i.plain for i in r.indices)
                                 != own[r.tensor] for r in reads),
        "run time": any(isinstance(a.extent, Bounds) for a in chain.axes),
        "constants": any(isinstance(n, Const) for n in nodes),
    }  # fmt: skip
    yield from (name for name, holds in tests.items() if holds)


def _of_tensors(chain: Chain) -> Iterator[str]:
    inputs = [chain.tensor(t) for t in chain.inputs]
    outputs = [chain.tensor(t) for t in chain.outputs]
    whole_, half = ("int32", "int64"), ("float16", "bfloat16")
    tests = {
        "strides of inputs": any(t.strides for t in inputs),
        "repeated elements": any(t.strides and 0 in t.strides for t in inputs),
        "offset": any(t.offset for t in inputs + outputs),
        "padding": any(t.padding for t in inputs),
        "strides of outputs": any(t.strides for t in outputs),
        "whole inputs": any(t.dtype in whole_ for t in inputs),
        "whole results": any(chain.tensor(o.out).dtype in whole_ for o in chain.operators),
        "bool inputs": any(t.dtype == "bool" for t in inputs),
        "bool results": any(chain.tensor(o.out).dtype == "bool" for o in chain.operators),
        "half inputs": any(t.dtype in half for t in inputs),
        "half results": any(chain.tensor(o.out).dtype in half for o in chain.operators),
        "narrow inputs": any(t.dtype in NARROW for t in inputs),
        "narrow results": any(t.dtype in NARROW for t in outputs),
        "constant tensors": any(t.constant for t in inputs),
    }
    yield from (name for name, holds in tests.items() if holds)


def _of_operators(chain: Chain) -> Iterator[str]:
    reductions = {o.out: o for o in chain.operators if o.reduce != "none"}
    maps = [o for o in chain.operators if o.reduce == "none"]
    behind = _behind(chain)
    pairs = [(o, reductions[r]) for o in reductions.values() for r in behind[o.out] - {o.out}]
    same = [(o, r) for o, r in pairs if set(o.over) & set(r.over)]
    domains = [o.domain for o in chain.operators if o.domain is not None]
    tests = {
        "two reduced axes": any(len(o.over) > 1 for o in reductions.values()),
        "rolled maximum": any(r.reduce == "max" and o.reduce == "max" for o, r in same),
        "rolled sum": any(r.reduce == "max" and o.reduce == "sum" for o, r in same),
        "moving sum": any(r.reduce == "sum" for o, r in same),
        "maximum of a moving sum": any(r.reduce == "sum" and o.reduce == "max" for o, r in same),
        "other axis": any(not set(o.over) & set(r.over) for o, r in pairs),
        "strict subset": any(set(r.over) < set(o.over) for o, r in pairs),
        "domain over positions": any(not _tensors(e) for e in domains),
        "domain reads": any(_tensors(e) for e in domains),
        "map read by several": any(len(chain.readers(o.out)) > 1 for o in maps),
        "empty domain": any(isinstance(e, Call) and e.args[-1] == Const(0) for e in domains),
    }
    yield from (name for name, holds in tests.items() if holds)


def _tensors(e: object) -> set[str]:
    return {n.tensor for n in walk(e) if isinstance(n, Read)}  # type: ignore[arg-type]


def _behind(chain: Chain) -> dict[str, set[str]]:
    """For every operator the reductions that it needs, directly or through others."""
    found: dict[str, set[str]] = {}
    for o in chain.operators:
        needed = {r.tensor for r in sources(o) if r.tensor in found}
        found[o.out] = set().union(*(found[n] for n in needed)) if needed else set()
        if o.reduce != "none":
            found[o.out] |= {o.out}
    return found


# --- inputs ---------------------------------------------------------------------------------

NUMPY = {"bfloat16": ml_dtypes.bfloat16}


def memory(chain: Chain, seed: int, mode: str = "plain") -> dict[str, np.ndarray]:
    """The inputs as they lie in memory: flat arrays of their types."""
    rng = np.random.default_rng(seed)
    return {n: _drawn(rng, chain, chain.tensor(n), mode) for n in chain.inputs}


def values(chain: Chain, seed: int, mode: str = "plain") -> dict[str, np.ndarray]:
    """Random inputs, as the chain indexes them, each of what its type can hold."""
    return {n: seen(chain, n, flat) for n, flat in memory(chain, seed, mode).items()}


def seen(chain: Chain, name: str, flat: np.ndarray) -> np.ndarray:
    """A tensor as the chain indexes it, of the memory that it lies in."""
    tensor, shape = chain.tensor(name), chain.shape(name)
    at, inside = np.full(shape, tensor.offset), np.ones(shape, bool)
    for i, (grid, stride) in enumerate(
        zip(np.indices(shape), _strides(chain, tensor), strict=True)
    ):
        padding = _along(tensor, i)
        here = grid if padding is None else grid - padding.before
        if padding is not None:
            inside &= (here >= 0) & (here < padding.extent)
        at += here * stride
    return np.where(inside, flat[np.where(inside, at, 0)], flat.dtype.type(0))


def room(chain: Chain, name: str) -> int:
    """Elements of the memory that a tensor lies in."""
    tensor = chain.tensor(name)
    sizes = [n if (p := _along(tensor, i)) is None else p.extent
             for i, n in enumerate(chain.shape(name))]  # fmt: skip
    steps = zip(sizes, _strides(chain, tensor), strict=True)
    return tensor.offset + 1 + sum((n - 1) * stride for n, stride in steps)


def _along(tensor: Tensor, dimension: int) -> Padding | None:
    """The padding along a dimension of a tensor."""
    stride = (tensor.strides or (0,) * len(tensor.shape))[dimension]
    if isinstance(stride, int):
        return None
    (digit,) = stride
    return tensor.padding[digit.padding]


def _strides(chain: Chain, tensor: Tensor) -> tuple[int, ...]:
    if tensor.strides is not None:
        return tuple(digits(s, 0)[0].stride for s in tensor.strides)
    shape = chain.shape(tensor.name)
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def _drawn(rng: np.random.Generator, chain: Chain, t: Tensor, mode: str) -> np.ndarray:
    size, role = room(chain, t.name), t.name[0]
    if role == "B":
        return rng.random(size) < 0.6
    if role == "L":
        low = -1 if mode == "negative" and t.dtype != "uint8" else 0
        most = 255 if mode == "scaled" and t.dtype == "uint8" else 9
        return rng.integers(low, most + 1, size).astype(t.dtype)
    drawn_ = rng.standard_normal(size)
    if role == "G":
        drawn_ = np.abs(drawn_) + (0.0 if mode == "zeros" else 0.3)
    elif mode in ("negative", "positive"):
        drawn_ = np.abs(drawn_) * (-1 if mode == "negative" else 1)
    if mode == "scaled":
        drawn_ = drawn_ * rng.choice([1e3, 1e-3, 1.0])
    if mode == "zeros":
        drawn_ = np.where(rng.random(size) < 0.3, 0.0, drawn_)
    if mode == "masked" and role == "M":
        low = -6e4 if t.dtype == "float16" else rng.choice([-1e9, -3.4028234663852886e38])
        low = rng.choice([-np.inf, low])
        drawn_ = np.where(rng.random(size) < rng.choice([0.5, 0.9, 1.0]), low, drawn_)
    return drawn_.astype(NUMPY.get(t.dtype, t.dtype))
