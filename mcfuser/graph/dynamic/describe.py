"""Run-time extents, shapes and buckets as the report of a compilation has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from mcfuser.graph.dynamic.buckets import LoadedBuckets
from mcfuser.graph.dynamic.dispatch import PortExtent, RuntimePort
from mcfuser.graph.dynamic.length import Least, LengthProduct, LengthSum, Quotient, Symbol


def dynamic_report(loaded: LoadedBuckets, chains: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The ports, run-time extents and buckets of a model; `chains` are the numbers of the chains of
    each bucket in the report's `chains`."""
    inputs, outputs = loaded.ports
    chosen = loaded.chosen
    return {
        "inputs": [_port(p) for p in inputs],
        "outputs": [_port(p) for p in outputs],
        "extents": [
            {
                "name": e.name,
                "low": e.low,
                "high": e.high,
                "sliced": e == loaded.sliced,
                "places": [list(p) for p in e.places],
            }
            for e in loaded.model.shapes.extents
        ],
        "buckets": [
            {"low": dict(b.box.low), "high": dict(b.box.high), "chains": list(keys)}
            for b, keys in zip(loaded.buckets, chains, strict=True)
        ],
        "padding": {
            "buckets": chosen.padded,
            "one_bucket": chosen.alone,
        },
    }


def _port(p: RuntimePort) -> dict[str, Any]:
    """A port; an extent that is known only at run time is -1 in its shape, and `extents` has it as
    an expression."""
    shape = [d if isinstance(d, int) else -1 for d in p.shape]
    return {
        "name": p.name,
        "shape": shape,
        "extents": [d if isinstance(d, int) else length_text(d) for d in p.shape],
        "dtype": p.dtype,
    }


def length_text(length: PortExtent) -> str:
    """A run-time extent as users read it."""
    match length:
        case int():
            return str(length)
        case Symbol(name):
            return name
        case LengthProduct(one, other):
            return f"({length_text(one)}) * ({length_text(other)})"
        case Quotient(divided, divisor):
            return f"({length_text(divided)}) // {divisor}"
        case Least(bounded, most):
            return f"min({length_text(bounded)}, {most})"
        case LengthSum(terms, constant):
            parts = [
                length_text(one) if times == 1 else f"{times} * {length_text(one)}"
                for one, times in terms
            ]
            whole = " + ".join(parts)
            if constant and parts:
                return f"{whole} {'+' if constant > 0 else '-'} {abs(constant)}"
            return whole or str(constant)
        case _:
            assert_never(length)
