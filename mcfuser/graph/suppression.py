"""NonMaxSuppression, of which a module has room for as many boxes as may be chosen, with -1 behind
those that are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from mcfuser.chain.suppression import Suppression, is_suppression, suppression_symbol
from mcfuser.graph.dataflow import array, extents

_Inputs = Sequence[Any]
_Attributes = Mapping[str, Any]


def suppressed(
    builder: relax.BlockBuilder, inputs: _Inputs, attributes: _Attributes
) -> relax.Expr | None:
    """The rows of a NonMaxSuppression whose limits are constants, as a call that has their room."""
    boxes, scores = inputs[:2]
    sizes = extents(scores)
    most, overlap, least = (_number(inputs, i) for i in (2, 3, 4))
    if sizes is None:
        return None
    kept = min(int(most or 0), sizes[-1])
    what = Suppression(kept, overlap or 0.0, least, bool(attributes.get("center_point_box", 0)))
    rows = relax.TensorType((math.prod(sizes[:-1]) * kept, 3), "int64")
    function = relax.ExternFunc(suppression_symbol(what))
    return relax.op.call_dps_packed(function, relax.Tuple([boxes, scores]), rows)


def margin(
    builder: relax.BlockBuilder, inputs: _Inputs, attributes: _Attributes
) -> relax.Expr | None:
    """The rows of a suppression for a Pad that makes room behind them: they have it."""
    made = builder.lookup_binding(inputs[0]) if isinstance(inputs[0], relax.Var) else None
    what = made.args[0] if isinstance(made, relax.Call) and made.args else None
    found = isinstance(what, relax.ExternFunc) and is_suppression(str(what.global_symbol))
    return inputs[0] if found else None


def _number(inputs: _Inputs, position: int) -> float | None:
    """A limit; None where the node has no such one."""
    given = inputs[position] if position < len(inputs) else None
    found = None if given is None else array(given)
    return None if found is None else float(found.item())
