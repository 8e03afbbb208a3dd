"""Why values of a module are in no chain, for users."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from mcfuser.graph.dataflow import FLOATS, MOVING, RECURRENCE, Dataflow, dtype, extents
from mcfuser.graph.selection import Selection

NOT_COMPUTED = "not computed: the regions that need it read what it is made from"
"""The reason of a value that the module does not compute at all."""


def left_out(chosen: Selection, obstacles: Mapping[relax.Var, str | None]) -> dict[relax.Var, str]:
    """Every value that no chain computes, in order, with the reason; `obstacles` are those of
    products."""
    return {
        v: _reason(chosen, v, obstacles.get(v)) for v in chosen.flow.order if v not in chosen.closed
    }


def _reason(chosen: Selection, v: relax.Var, obstacle: str | None) -> str:
    if v not in chosen.live:
        return NOT_COMPUTED
    never = _never(chosen.flow, v)
    if never is not None:
        return never
    return chosen.reasons.get(v) or obstacle or _otherwise(chosen.flow, v)


def _never(flow: Dataflow, v: relax.Var) -> str | None:
    """Why a value can be in no chain, whatever is around it."""
    if flow.operator(v) == RECURRENCE:
        return "it is a loop over a sequence, with code of its own"
    if isinstance(v.ty, relax.TupleType):
        return f"{flow.operator(v)} has several results, and a chain's operator has one"
    if extents(v) is None:
        return "its shape is known only at run time"
    if flow.kinds[v] == "other":
        return f"{flow.operator(v)} is no operator of a chain"
    if dtype(v) not in FLOATS and flow.kinds[v] != "product":
        return f"its result is {dtype(v)}; a chain's is {', '.join(FLOATS[:-1])} or {FLOATS[-1]}"
    return None


def _otherwise(flow: Dataflow, v: relax.Var) -> str:
    if flow.kinds[v] in MOVING:
        return "it moves elements and computes nothing, and no chain takes it in"
    return "no chain that ends with it can be written, and none takes it in"
