"""Norms over groups of channels, computed of elements that have the dimensions of a picture.

Exporters reshape a picture [n, channels, ..] to [n, groups, rest], where each group is normalized,
and back. Here all that is computed for each element keeps the picture's dimensions, and only what
is reduced has the groups as one more: [n, groups, channels of a group, ..]. So the picture can be
stored with its channels last (mcfuser.graph.layout), which mixes a group's channels and positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm import ir, relax

from mcfuser.graph.dataflow import array, extents, shape
from mcfuser.graph.matching import calls_rewritten, with_arguments
from mcfuser.graph.reduce import reduced_dimensions
from mcfuser.graph.scalar import ELEMENTWISE

_REDUCTIONS = {
    f"relax.{o.__name__}": o for o in (relax.op.sum, relax.op.mean, relax.op.max, relax.op.min)
}
_RESHAPE = "relax.reshape"

_Values = Mapping[relax.Var, relax.Expr]


def norms_of_groups(function: relax.Function) -> relax.Function:
    """The function with every norm over groups of channels in its picture's dimensions."""
    values = relax.analysis.get_var2val(function)

    def rewriter(call: relax.Call) -> relax.Expr:
        found = _as_picture(call, values)
        return call if found is None else found

    return calls_rewritten(function, {_RESHAPE}, rewriter)


def _as_picture(back: relax.Call, values: _Values) -> relax.Expr | None:
    """What a reshaping to a picture gives, if it is of a norm of the picture's groups."""
    picture, apart = extents(back), extents(back.args[0])
    if picture is None or apart is None or min(len(picture), len(apart)) < 3:
        return None
    n, channels, *places = picture
    groups = apart[1]
    if apart == picture or apart[0] != n or channels % groups:
        return None
    parts = (n, groups, channels // groups, *places)
    norm = _Norm(values, apart, picture, parts)
    found = norm.elements(back.args[0], picture)
    return found if norm.reduced else None


@dataclass
class _Norm:
    """A norm that is computed of elements `apart` [n, groups, ..], which are those of a `picture`
    [n, channels, ..] or of its `parts` [n, groups, channels of a group, ..]. What it is written as
    is `made`; `reduced` tells whether any reduction is part of it."""

    values: _Values
    apart: tuple[int, ...]
    picture: tuple[int, ...]
    parts: tuple[int, ...]
    made: dict[tuple[relax.Var, tuple[int, ...]], relax.Expr | None] = field(default_factory=dict)
    reduced: bool = False

    def elements(self, value: relax.Expr, target: tuple[int, ...]) -> relax.Expr | None:
        """A value that is computed for each element, in the dimensions of `target`, which are the
        picture's or the parts'; None where some other value is read element by element."""
        if not isinstance(value, relax.Var):
            return None
        if (value, target) not in self.made:
            self.made[value, target] = self._elements(value, target)
        return self.made[value, target]

    def _elements(self, value: relax.Var, target: tuple[int, ...]) -> relax.Expr | None:
        call = _called(self.values.get(value))
        if call is None:
            return None
        if call.op.name == _RESHAPE and extents(call.args[0]) == self.picture:
            data = call.args[0]
            return data if target == self.picture else relax.op.reshape(data, target)
        if call.op.name not in ELEMENTWISE:
            return None
        args = [self._operand(a, target) for a in call.args]
        return None if any(a is None for a in args) else with_arguments(call, args)

    def _operand(self, value: relax.Expr, target: tuple[int, ...]) -> relax.Expr | None:
        """An operand of an elementwise operator, in the dimensions of `target` or as they are
        broadcast to these."""
        own = extents(value)
        if own is None or len(own) > len(self.apart):
            return None
        own = (1,) * (len(self.apart) - len(own)) + own
        if own == self.apart:
            return self.elements(value, target)
        if math.prod(own[2:]) > 1:
            return None
        if array(value) is not None and math.prod(own) == 1:
            return value if len(shape(value)) <= len(target) else relax.op.reshape(value, ())
        places = (1,) * (len(self.picture) - 2)
        value = self.of_groups(value)
        if target == self.parts:
            return relax.op.reshape(value, (*own[:2], 1, *places))
        n, channels = own[:2]
        if channels > 1:
            value = relax.op.reshape(value, (*own[:2], 1, *places))
            value = relax.op.broadcast_to(value, (*own[:2], self.parts[2], *places))
            channels = self.picture[1]
        return relax.op.reshape(value, (n, channels, *places))

    def of_groups(self, value: relax.Expr) -> relax.Expr:
        """A value that is computed for each group, of reductions of the picture's parts."""
        if not isinstance(value, relax.Var):
            return value
        if (value, self.apart) not in self.made:
            self.made[value, self.apart] = self._of_groups(value)
        made = self.made[value, self.apart]
        return value if made is None else made

    def _of_groups(self, value: relax.Var) -> relax.Expr | None:
        call = _called(self.values.get(value))
        if call is None:
            return None
        if call.op.name in ELEMENTWISE:
            return with_arguments(call, [self.of_groups(a) for a in call.args])
        rank = len(self.apart)
        whole = tuple(range(2, rank))
        if call.op.name not in _REDUCTIONS or extents(call.args[0]) != self.apart:
            return None
        if reduced_dimensions(call.attrs.axis, rank) != whole:
            return None
        terms = self.elements(call.args[0], self.parts)
        if terms is None:
            return None
        self.reduced = True
        total = _REDUCTIONS[call.op.name](terms, list(range(2, len(self.parts))))
        return relax.op.reshape(total, shape(value))


def _called(value: relax.Expr | None) -> relax.Call | None:
    """The call of an operator that an expression is."""
    return value if isinstance(value, relax.Call) and isinstance(value.op, ir.Op) else None
