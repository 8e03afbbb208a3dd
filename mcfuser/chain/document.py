"""Reads and writes chains as JSON documents, in which operators are lines of text."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from mcfuser.chain.values import (
    Axis,
    Bounds,
    Chain,
    Digit,
    Extent,
    Operator,
    Padding,
    ProductPrecision,
    Reducer,
    Stride,
    Tensor,
    digits,
    largest,
)
from mcfuser.errors import ChainError
from mcfuser.expr import parse

DIGITS = 8
"""The most digits of a dimension's positions, in a document."""
_LINE = re.compile(
    r"\s*(?P<out>\w+)\[(?P<axes>[^\]]*)\]\s*=\s*"
    r"(?:(?P<reduce>sum|max|min)\[(?P<over>[^\]]*)\]\s+)?(?P<body>.*?)(?:\s+where\s+(?P<domain>.*))?\s*"
)


def reduces(line: str) -> bool:
    """Whether a line of text describes a reduction; False where it describes no operator."""
    match = _LINE.fullmatch(line)
    return match is not None and match["reduce"] is not None


def parse_operator(line: str) -> Operator:
    """The operator that a line of text describes, in the form in which Operator prints itself:
    `out[m, h] = sum[n] P[m, n] * V[n, h] where n <= m`.

    Raises ChainError where the line has another form.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise ChainError(
            f"{_brief(line)} is not an operator: write out[m, n] = sum[k] A[m, k] * B[k, n]"
        )
    if match["reduce"] == "min":
        raise ChainError(
            f"{_brief(line)} reduces by min; write the maximum of what is negated, and negate "
            f"that: min[n] X[m, n] is -T[m] of T[m] = max[n] -X[m, n]"
        )
    reducer: Reducer = "none"
    if match["reduce"]:
        reducer = "sum" if match["reduce"] == "sum" else "max"
    domain = parse(match["domain"]) if match["domain"] else None
    return Operator(
        match["out"],
        _names(match["axes"]),
        parse(match["body"]),
        reducer,
        _names(match["over"] or ""),
        domain,
    )


def _names(words: str) -> tuple[str, ...]:
    return tuple(w.strip() for w in words.split(",") if w.strip())


def to_json(chain: Chain) -> dict[str, object]:
    """The chain as a JSON document (docs/chains.md), which `from_json` reads."""
    out: dict[str, object] = {
        "name": chain.name,
        "axes": {
            a.name: [a.extent.low, a.extent.high] if isinstance(a.extent, Bounds) else a.extent
            for a in chain.axes
        },
        "tensors": {t.name: _tensor_json(t) for t in chain.tensors},
        "operators": [str(o) for o in chain.operators],
        "outputs": list(chain.outputs),
    }
    return out | ({"precision": chain.precision} if chain.precision != "float32" else {})


def _tensor_json(t: Tensor) -> dict[str, object]:
    out: dict[str, object] = {"shape": list(t.shape), "dtype": t.dtype}
    if t.constant:
        out["constant"] = True
    if t.strides is not None:
        out["strides"] = [_stride_json(s) for s in t.strides]
    if t.offset:
        out["offset"] = t.offset
    if t.padding:
        out["padding"] = [_padding_json(t, i) for i in range(len(t.padding))]
    return out


def _stride_json(stride: Stride) -> object:
    """A stride, or the extents and strides of several digits, each with the number of its padding
    if it has one. The padding of a single one names the dimension."""
    along = digits(stride, 0)
    if len(along) == 1:
        return along[0].stride
    return [
        [d.extent, d.stride] if d.padding is None else [d.extent, d.stride, d.padding]
        for d in along
    ]


def _padding_json(t: Tensor, number: int) -> dict[str, object]:
    """A tensor's padding, with the dimensions that move along it."""
    along = [
        i for i, s in enumerate(t.strides or ())
        if any(d.padding == number for d in digits(s, 0))
    ]  # fmt: skip
    p = t.padding[number]
    out = {"dimensions": along, "extent": p.extent, "stride": p.stride, "before": p.before}
    return out | ({"value": p.value} if p.value else {})


def from_json(document: Mapping[str, object]) -> Chain:
    """The chain of a JSON document. Tensors that operators write may be left out: they are float32.

    Raises ChainError where the document has another form, or the operators do not fit together.
    """
    try:
        operators = tuple(parse_operator(_word(line)) for line in _list(document["operators"]))
        given = _dict(document.get("tensors", {}))
        sizes = {n: _extent(v) for n, v in _dict(document["axes"]).items()}
        tensors = [_tensor(name, _dict(value), sizes) for name, value in given.items()]
        tensors += [Tensor(o.out, o.axes) for o in operators if o.out not in given]
        return Chain(
            _word(document.get("name", "chain")),
            tuple(Axis(n, extent) for n, extent in sizes.items()),
            tuple(tensors),
            operators,
            tuple(_word(o) for o in _list(document.get("outputs", []))),
            cast(ProductPrecision, _word(document.get("precision", "float32"))),
        )
    except KeyError as error:
        raise ChainError(
            f"the chain document has no {error}; it needs axes and operators"
        ) from None
    except ChainError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise ChainError(f"the chain document is not of the documented form: {error}") from None


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected where {_brief(value)} stands")
    return value


def _dict(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected where {_brief(value)} stands")
    return value


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"words were expected where {_brief(value)} stands")
    return value


def _whole(value: object) -> int:
    if type(value) is not int or abs(value) >= 2**63:
        raise TypeError(f"a whole number of 64 bits was expected where {_brief(value)} stands")
    return value


def _real(padding: Mapping[str, object]) -> float:
    """The value of a padding."""
    value = padding.get("value", 0.0)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"the value of padding is a number, not {_brief(value)}")
    return float(value)


def _brief(value: object) -> str:
    """A value as a message shows it, shortened if it is long or deep."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 3, 100, 100
    return short.repr(value)


def _extent(value: object) -> Extent:
    if isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value):
        return Bounds(value[0], value[1])
    if type(value) is not int:
        raise TypeError(f"an extent is a whole number or [low, high], not {_brief(value)}")
    return value


def _digits(name: str, given: Sequence[object]) -> Iterator[Digit]:
    """Digits of a tensor's dimension, each an extent and a stride, and a padding's number if it has
    one."""
    if len(given) > DIGITS:
        raise TypeError(
            f"a stride of tensor '{name}' has {len(given)} digits; use at most {DIGITS}"
        )
    for d in given:
        if not isinstance(d, list) or len(d) not in (2, 3):
            raise TypeError(
                f"a stride of tensor '{name}' is a number, or a list of an extent and a stride "
                f"each, not {_brief(d)}"
            )
        yield Digit(*map(_whole, d))


def _tensor(name: str, value: Mapping[str, object], sizes: Mapping[str, Extent]) -> Tensor:
    """The tensor of a document, in a chain whose axes have these extents."""
    strides, constant = value.get("strides"), value.get("constant", False)
    if not isinstance(constant, bool):
        raise TypeError(f"'constant' of tensor '{name}' is true or false, not {_brief(constant)}")
    shape = tuple(d if isinstance(d, str) else _whole(d) for d in _list(value["shape"]))
    given = [_dict(p) for p in _list(value.get("padding", []))]
    moving = {_whole(d): i for i, p in enumerate(given) for d in _list(p["dimensions"])}
    if moving and (strides is None or not {*moving} <= {*range(len(shape))}):
        raise TypeError(f"the padding of tensor '{name}' needs strides, and dimensions that it has")

    def stride(i: int, given: object) -> Stride:
        if isinstance(given, list):
            return tuple(_digits(name, given))
        if i not in moving:
            return _whole(given)
        d = shape[i]
        return (Digit(d if isinstance(d, int) else largest(sizes[d]), _whole(given), moving[i]),)

    return Tensor(
        name,
        shape,
        _word(value.get("dtype", "float32")),
        constant,
        tuple(stride(i, s) for i, s in enumerate(_list(strides))) if strides is not None else None,
        _whole(value.get("offset", 0)),
        tuple(
            Padding(_whole(p["extent"]), _whole(p["stride"]), _whole(p["before"]), _real(p))
            for p in given
        ),
    )
