"""LSTM, GRU and RNN as one call for a whole sequence.

The products of all steps with the input weights are one product, which is a chain like any other.
What a step does with them and with the state is a value (mcfuser.chain.recurrence), which the call
carries as text in the name of what it calls; a code generator makes the loop over the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from mcfuser.chain.recurrence import UNIT, Recurrence, RecurrentStage, recurrence_symbol
from mcfuser.expr import Expr, parse
from mcfuser.graph.dataflow import array, dtype, shape

ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",),
}  # fmt: skip
"""The functions of a step's gates, where a node names no others."""
GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""The kinds of recurrent nodes, with the products of a step."""
WEIGHTS, LENGTHS = (1, 2, 3, 7), 4
"""The positions of the inputs that are weights, and of the one that has the sequences' lengths."""
BACKWARD: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,), "reverse": (True,), "bidirectional": (False, True),
}  # fmt: skip
"""For each direction that a node names, whether its walks begin at the sequence's end."""
FACTORS: Mapping[str, Mapping[str, float]] = {
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "ThresholdedRelu": {"alpha": 1.0},
}
"""Activations with factors, and the values that these have where the node gives none."""
FUNCTIONS: Mapping[str, str] = {
    "Sigmoid": "1.0 / (exp(-{x}) + 1.0)",
    "Tanh": "tanh({x})",
    "Relu": "max({x}, 0.0)",
    "Softsign": "{x} / (abs({x}) + 1.0)",
    "Softplus": "max({x}, 0.0) + log(exp(-abs({x})) + 1.0)",
    "HardSigmoid": "max(min({x} * {alpha} + {beta}, 1.0), 0.0)",
    "LeakyRelu": "select({x} < 0.0, {x} * {alpha}, {x})",
    "Elu": "select({x} < 0.0, (exp({x}) - 1.0) * {alpha}, {x})",
    "ThresholdedRelu": "select({alpha} < {x}, {x}, 0.0)",
}
"""The activations that a node may name."""
_Weights = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class GateFunction:
    """A function of a gate, by ONNX's name, with its factors."""

    name: str
    factors: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RecurrentNode:
    """A recurrent node, by its inputs and attributes.

    `inputs` are ONNX's: the sequence, its weights, those of the state, the biases, lengths, the
    first states, and an LSTM's peepholes; None for each that is left out.
    """

    kind: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any]

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute's value; text is str."""
        found = self.attributes.get(name, default)
        return found.decode() if isinstance(found, bytes) else found

    def input(self, position: int) -> Any:
        """An input, None where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def weights(self, position: int) -> _Weights:
        """The numbers of an input that is known. Raises ValueError where it is not."""
        found = array(self.input(position))
        if found is None:
            raise ValueError(f"its input {position} is not known before the model runs")
        return found

    @property
    def resets_product(self) -> bool:
        """A GRU whose reset gate multiplies the product with the state, and not the state."""
        return self.kind == "GRU" and bool(self.attribute("linear_before_reset", 0))


def activations(
    kind: str, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], count: int
) -> list[list[GateFunction]]:
    """For each of `count` directions, the functions of its gates. Raises ValueError for one that is
    not known."""
    defaults = ACTIVATIONS[kind]
    given = {"alpha": list(alphas), "beta": list(betas)}
    made = []
    for name in names or [*defaults] * count:
        if name not in FUNCTIONS:
            raise ValueError(f"its activation '{name}' is none of {', '.join(FUNCTIONS)}")
        factors = {
            k: float(given[k].pop(0)) if given[k] else default
            for k, default in FACTORS.get(name, {}).items()
        }
        made.append(GateFunction(name, factors))
    return [made[d * len(defaults) :][: len(defaults)] for d in range(count)]


def stage_sums(kind: str, resets_product: bool) -> tuple[int, ...]:
    """The numbers of products of a step's stages: a GRU that resets its state has its last product
    after its gates, unless it resets that product."""
    return (2, 1) if kind == "GRU" and not resets_product else (GATES[kind],)


def all_last(lengths: _Weights | None, steps: int) -> bool:
    """Whether sequences of these lengths, None where they are not known, have all steps."""
    return lengths is not None and bool(np.all(np.asarray(lengths, np.int64) >= steps))


def converter(kind: str) -> Callable[..., relax.Expr]:
    """The converter (graph.convert) of a kind of recurrent nodes."""

    def convert(
        builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: Mapping[str, Any]
    ) -> relax.Expr:
        return called(builder, RecurrentNode(kind, inputs, attributes))

    return convert


def called(builder: relax.BlockBuilder, node: RecurrentNode) -> relax.Expr:
    """The results of a node: the states that its steps show, [steps, directions, batch, hidden],
    and the last one of each state, [directions, batch, hidden].

    Raises ValueError where its weights are not known before the model runs.
    """
    x = node.input(0)
    steps, batch, width = shape(x)
    recurrent = node.weights(2)
    directions, columns, hidden = recurrent.shape
    lengths = _lengths(node, steps)
    cell = replace(_cell(node), lengths=lengths is not None)
    flat = builder.emit(relax.op.reshape(x, [steps * batch, width]))
    matrix = np.ascontiguousarray(node.weights(1).reshape(directions * columns, width).T)
    given = builder.emit(relax.op.matmul(flat, relax.const(matrix)))
    bias, constants = _biases(node, directions, hidden)
    if bias is not None:
        given = builder.emit(relax.op.add(given, relax.const(bias)))
    square = np.ascontiguousarray(recurrent.transpose(0, 2, 1))
    arguments = [given, relax.const(square)]
    if constants is not None:
        arguments.append(relax.const(constants))
    if lengths is not None:
        arguments.append(lengths)
    form = directions, batch, hidden
    firsts = [node.input(5 + i) for i in range(len(cell.states))]
    zeros = relax.const(np.zeros(form, recurrent.dtype))
    arguments += [zeros if first is None else first for first in firsts]
    types = [relax.TensorType(e, dtype(x)) for e in ((steps, *form), *[form] * len(firsts))]
    function = relax.ExternFunc(recurrence_symbol(cell))
    made = builder.emit(relax.op.call_dps_packed(function, relax.Tuple(arguments), types))
    return relax.Tuple([builder.emit(relax.TupleGetItem(made, i)) for i in range(len(types))])


def _lengths(node: RecurrentNode, steps: int) -> Any:
    """The lengths of the sequences, [batch] of int32; None where all are known to have all
    steps."""
    given = node.input(LENGTHS)
    return None if given is None or all_last(array(given), steps) else given


def _biases(
    node: RecurrentNode, directions: int, hidden: int
) -> tuple[_Weights | None, _Weights | None]:
    """What is added to the input products, [directions x gates x hidden], and the constants of a
    step, [directions, constants, hidden]; None for what the node has not."""
    gates = GATES[node.kind]
    added, own = None, None
    if node.input(3) is not None:
        parts = node.weights(3).reshape(directions, 2, gates, hidden)
        if node.resets_product:
            own = parts[:, 1, 2:]
            parts = parts.copy()
            parts[:, 1, 2] = 0
        added = np.ascontiguousarray(parts.sum(axis=1).reshape(-1))
    if node.kind == "LSTM" and node.input(7) is not None:
        own = node.weights(7).reshape(directions, 3, hidden)
    return added, None if own is None else np.ascontiguousarray(own)


def _cell(node: RecurrentNode) -> Recurrence:
    """What a step does. Raises ValueError where the directions differ in it."""
    backward = BACKWARD[node.attribute("direction", "forward")]
    names = [n.decode() for n in node.attribute("activations", ())]
    alphas, betas = (node.attribute(f"activation_{k}", ()) for k in ("alpha", "beta"))
    ways = [way for way, _ in groupby(activations(node.kind, names, alphas, betas, len(backward)))]
    if len(ways) > 1:
        raise ValueError("its directions have different activations")
    clip = float(node.attribute("clip", 0.0))
    write = _Step([FUNCTIONS[a.name].format(x="{x}", **a.factors) for a in ways[0]], clip)
    if node.kind == "LSTM":
        return _lstm(node, write, backward)
    return _gru(node, write, backward) if node.kind == "GRU" else _rnn(write, backward)


@dataclass(frozen=True, slots=True)
class _Step:
    """Writes the values of a step; `functions` are those of the gates, of a value `{x}`."""

    functions: Sequence[str]
    clip: float

    def gate(self, name: str, number: int, argument: str) -> list[tuple[str, Expr]]:
        """A gate, and what its function is of, which is clipped."""
        if self.clip:
            argument = f"min(max({argument}, {-self.clip!r}), {self.clip!r})"
        return [(f"of_{name}", parse(argument)), (name, self.function(number, f"of_{name}"))]

    def function(self, number: int, of: str) -> Expr:
        """A function of a value."""
        return parse(self.functions[number].format(x=f"{of}[{UNIT}]"))


def _lstm(node: RecurrentNode, write: _Step, backward: tuple[bool, ...]) -> Recurrence:
    """With peepholes, gates see the cell's state: the output gate the new one."""
    sees = ("sees_i", "sees_o", "sees_f") if node.input(7) is not None else ()
    of_i, of_o, of_f, of_c = (f"given_{g}[j] + sum_{g}[j]" for g in "iofc")
    if sees:
        of_i, of_f = f"{of_i} + c[j] * sees_i[j]", f"{of_f} + c[j] * sees_f[j]"
        of_o = f"{of_o} + next_c[j] * sees_o[j]"
    values = write.gate("i", 0, of_i)
    values += (
        [("f", parse("1.0 - i[j]"))]
        if node.attribute("input_forget", 0)
        else write.gate("f", 0, of_f)
    )
    values += write.gate("n", 1, of_c)
    values.append(("next_c", parse("f[j] * c[j] + i[j] * n[j]")))
    values += write.gate("o", 0, of_o)
    values += [("shown", write.function(2, "next_c")), ("next_h", parse("o[j] * shown[j]"))]
    stage = RecurrentStage("h", tuple(f"sum_{g}" for g in "iofc"), tuple(values))
    states = (("h", "next_h"), ("c", "next_c"))
    return Recurrence(tuple(f"given_{g}" for g in "iofc"), sees, states, (stage,), backward)


def _gru(node: RecurrentNode, write: _Step, backward: tuple[bool, ...]) -> Recurrence:
    """The reset gate multiplies the state before its product, or that product."""
    gates = write.gate("z", 0, "given_z[j] + sum_z[j]") + write.gate(
        "r", 0, "given_r[j] + sum_r[j]"
    )
    last = ("next_h", parse("n[j] + z[j] * (h[j] - n[j])"))  # (1 - z) n + z h
    given = ("given_z", "given_r", "given_n")
    if node.resets_product:
        has_bias = node.input(3) is not None
        product = "(sum_n[j] + bias[j])" if has_bias else "sum_n[j]"
        values = (*gates, *write.gate("n", 1, f"given_n[j] + r[j] * {product}"), last)
        stages = (RecurrentStage("h", ("sum_z", "sum_r", "sum_n"), values),)
        return Recurrence(
            given, ("bias",) if has_bias else (), (("h", "next_h"),), stages, backward
        )
    first = RecurrentStage("h", ("sum_z", "sum_r"), (*gates, ("reset", parse("r[j] * h[j]"))))
    values = (*write.gate("n", 1, "given_n[j] + sum_n[j]"), last)
    second = RecurrentStage("reset", ("sum_n",), values)
    return Recurrence(given, (), (("h", "next_h"),), (first, second), backward)


def _rnn(write: _Step, backward: tuple[bool, ...]) -> Recurrence:
    values = tuple(write.gate("next_h", 0, "given[j] + sum[j]"))
    stage = RecurrentStage("h", ("sum",), values)
    return Recurrence(("given",), (), (("h", "next_h"),), (stage,), backward)
