"""LSTM, GRU and RNN, unrolled over their sequence where a device has no loop over all its steps.

The products of all steps with the input weights are one product. Each step then has one product
with the recurrent weights (two in a GRU that resets before its product). What is added to such a
product directly is no view of all steps' input products: chains that differ in an offset are
different kernels, and every step would need one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from mcfuser.graph.recurrence import (
    BACKWARD,
    GATES,
    LENGTHS,
    WEIGHTS,
    GateFunction,
    activations,
    all_last,
    stage_sums,
)
from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.quantized import requantized

_DTYPES = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}
"""The types of nodes that may stay. onnxruntime, which folds constants, refuses those of others."""
_STEP_NODES = {"LSTM": 21, "GRU": 20, "RNN": 5}
"""At most so many nodes a step, without what masks and clipping add."""

Activation = Callable[[str], str]
Multiplicand = Callable[[NodeBody, str], str]
"""What a product has of a value: the value, or what is left of it once it is quantized."""
State = tuple[str, ...]
"""The hidden state, and the cell state of an LSTM: [batch, hidden] each."""


@dataclass(frozen=True, slots=True)
class _Direction:
    """One direction of a walk over the sequence, and its weights.

    `multiplicand` is what a product has of the hidden state.
    `recurrent` are those that the hidden state is multiplied with: [hidden, gates x hidden] each.
    `hidden_bias` [hidden] is the bias that a GRU's reset gate multiplies, where there is one.
    `peepholes` are those of the gates i, o and f, [hidden] each, or none.
    """

    number: int
    backward: bool
    activations: Sequence[Activation]
    recurrent: Sequence[str]
    hidden_bias: str | None
    peepholes: Sequence[str]
    multiplicand: Multiplicand


Cell = Callable[[NodeBody, _Direction, str, State], State]
"""The state after a step, from the step's input products [batch, gates x hidden] and the state
before it."""


def lstm(body: NodeBody) -> list[str | None] | None:
    """ONNX's LSTM: the hidden states of all steps, the last hidden state, the last cell state."""
    return None if _is_whole(body) else _unrolled(body, _lstm_cell, 2)


def dynamic_lstm(body: NodeBody) -> list[str | None]:
    """com.microsoft's DynamicQuantizeLSTM: an LSTM with quantized weights [directions, depth,
    gates x hidden], whose products quantize their other operand as it comes."""
    weights = [_real_weights(body, *at) for at in ((1, 8, 9), (2, 10, 11))]
    return _unrolled(body, _lstm_cell, 2, weights, requantized)


def _real_weights(body: NodeBody, weights: int, scale: int, zero: int) -> str:
    """Quantized weights as an LSTM takes them, [directions, gates x hidden, depth]; their scales
    are [directions], or [directions, gates x hidden]."""
    name = body.read(weights)
    wide = body.cast(name, TensorProto.FLOAT)
    if body.has(zero):
        wide = body.op("Sub", wide, body.cast(_by_direction(body, zero), TensorProto.FLOAT))
    return body.transpose(body.op("Mul", wide, _by_direction(body, scale)), 0, 2, 1)


def _by_direction(body: NodeBody, position: int) -> str:
    """An input as [directions, 1, 1 or gates x hidden]."""
    name = body.read(position)
    directions, *columns = body.shape(name)
    return body.reshape(name, directions, 1, *(columns or [1]))


def gru(body: NodeBody) -> list[str | None] | None:
    """ONNX's GRU: the hidden states of all steps, and the last one."""
    return None if _is_whole(body) else _unrolled(body, _gru_cell, 1)


def rnn(body: NodeBody) -> list[str | None] | None:
    """ONNX's RNN: the hidden states of all steps, and the last one."""
    return None if _is_whole(body) else _unrolled(body, _rnn_cell, 1)


def _is_whole(body: NodeBody) -> bool:
    """Whether a node stays, and is one call for its whole sequence (graph.recurrence): it is within
    the limits, has the directions that it names, and all its weights are known. The batch may not
    come first, which onnxruntime refuses when constants are folded."""
    if not body.recurrences.dtypes or body.attribute("layout", 0):
        return False
    if not all(body.known.is_fixed(body.read(i)) for i in WEIGHTS if body.has(i)):
        return False
    steps, batch, _ = body.shape(body.read(0), 3)
    directions, columns, hidden = body.shape(body.read(2), 3)
    dtype = _DTYPES.get(body.dtype(body.read(0)), "")
    stages = stage_sums(_kind(body), _resets_product(body))
    if not body.recurrences.hold(dtype, stages, batch, hidden):
        return False
    if len(BACKWARD.get(body.attribute("direction", "forward"), ())) != directions:
        return False
    first, *others = _named(body, directions)
    alike = all(way == first for way in others)
    return alike and steps * batch * directions * columns < 1 << 31


def _same(body: NodeBody, x: str) -> str:
    return x


def _kind(body: NodeBody) -> str:
    kind: str = body.node.op_type
    return kind.removeprefix("DynamicQuantize")


def _unrolled(
    body: NodeBody,
    cell: Cell,
    states: int,
    weights: Sequence[str] | None = None,
    multiplicand: Multiplicand = _same,
) -> list[str | None]:
    """The node's results; `weights` are those of the input and of the hidden state, the node's
    own if None."""
    kind, (given, recurrent) = _kind(body), weights or (body.read(1), body.read(2))
    x, batch_first = body.read(0), body.attribute("layout", 0) == 1
    if batch_first:
        x = body.transpose(x, 1, 0, 2)
    steps, batch, width = body.shape(x, 3)
    directions, _, hidden = body.shape(recurrent, 3)
    per_step = directions * (_STEP_NODES[kind] + 3 * states * body.has(4))
    body.reserve(steps * per_step, f"unrolled over {steps} steps")
    gates = GATES[kind] * hidden
    matrix = body.reshape(given, directions * gates, width)
    flat = multiplicand(body, body.reshape(x, steps * batch, width))
    products = body.op("MatMul", flat, body.op("Transpose", matrix, perm=[1, 0]))
    bias = _input_bias(body, directions, gates)
    if bias is not None:
        products = body.op("Add", products, bias)
    valid = _valid(body, steps, batch)
    zero = body.const(0.0, body.dtype(x))
    sequences, finals = [], []
    ways = _directions(body, recurrent, multiplicand)
    for d, own in zip(ways, body.split(products, 1, directions), strict=True):
        rows = body.split(own, 0, steps)
        if kind == "RNN" or (kind == "GRU" and not _resets_product(body)):
            rows = _copies(body, rows)  # a sum with them follows a product at once
        state = tuple(_initial(body, 5 + i, d.number, batch, hidden) for i in range(states))
        shown = [""] * steps
        for t in range(steps)[:: -1 if d.backward else 1]:
            after = cell(body, d, rows[t], state)
            shown[t] = after[0]
            if valid is not None:
                shown[t] = body.op("Where", valid[t], after[0], zero)
                after = tuple(
                    body.op("Where", valid[t], new, old)
                    for new, old in zip(after, state, strict=True)
                )
            state = after
        whole = body.concat(0, *shown)
        sequences.append(body.reshape(whole, steps, 1, batch, hidden))
        finals.append([body.reshape(s, 1, batch, hidden) for s in state])
    results = [body.concat(1, *sequences)]
    results += [body.concat(0, *(f[i] for f in finals)) for i in range(states)]
    if batch_first:
        results[0] = body.transpose(results[0], 2, 0, 1, 3)
        results[1:] = [body.transpose(r, 1, 0, 2) for r in results[1:]]
    return list(results)


def _copies(body: NodeBody, rows: Sequence[str]) -> list[str]:
    """Values that are no views of another one."""
    body.room(*body.shape(rows[0]))
    index = body.const(np.indices(body.shape(rows[0]))[1], TensorProto.INT64)
    return [body.op("GatherElements", row, index, axis=1) for row in rows]


def _input_bias(body: NodeBody, directions: int, gates: int) -> str | None:
    """The bias of the input products: [directions x gates]; None where the node has none.

    The recurrent bias is added to it, but for what a GRU's reset gate multiplies.
    """
    if not body.has(3):
        return None
    both = body.read(3)
    bias, recurrent = (body.slice(both, 1, i * gates, (i + 1) * gates) for i in (0, 1))
    if _resets_product(body):
        kept = np.ones(gates, np.int64)
        kept[gates // 3 * 2 :] = 0
        recurrent = body.op("Mul", recurrent, body.const(kept, body.dtype(both)))
    return body.reshape(body.op("Add", bias, recurrent), directions * gates)


def _directions(body: NodeBody, weights: str, multiplicand: Multiplicand) -> list[_Direction]:
    """The directions in which the node walks over its sequence, with their parts of the `weights`
    of the hidden state."""
    kind, way = _kind(body), body.attribute("direction", "forward")
    count, _, hidden = body.shape(weights, 3)
    functions = _activations(body, count)
    found = []
    for d in range(count):
        own = body.reshape(body.slice(weights, 0, d, d + 1), GATES[kind] * hidden, hidden)
        recurrent = [body.op("Transpose", own, perm=[1, 0])]
        if kind == "GRU" and not _resets_product(body):
            ends = ((0, 2 * hidden), (2 * hidden, 3 * hidden))
            recurrent = [body.slice(recurrent[0], 1, *e) for e in ends]
        bias, peepholes = None, list[str]()
        if _resets_product(body) and body.has(3):
            row = body.reshape(body.slice(body.read(3), 0, d, d + 1), 6 * hidden)
            bias = body.slice(row, 0, 5 * hidden, 6 * hidden)
        if kind == "LSTM" and body.has(7):
            row = body.reshape(body.slice(body.read(7), 0, d, d + 1), 3 * hidden)
            peepholes = body.split(row, 0, 3)
        backward = d == 1 or way == "reverse"
        found.append(
            _Direction(d, backward, functions[d], recurrent, bias, peepholes, multiplicand)
        )
    return found


def _resets_product(body: NodeBody) -> bool:
    """Whether the node is a GRU whose reset gate multiplies the product with the hidden state, and
    not the hidden state before it."""
    return body.node.op_type == "GRU" and bool(body.attribute("linear_before_reset", 0))


def _activations(body: NodeBody, directions: int) -> list[list[Activation]]:
    """For each direction, the functions of its gates. Raises ModelError for one that is not
    known."""
    clip = body.attribute("clip", 0.0)
    return [
        [  # onnxruntime does not clip an LSTM's cell state
            _activation(body, a.name, a.factors, clip if i < 2 else 0.0) for i, a in enumerate(way)
        ]
        for way in _named(body, directions)
    ]


def _named(body: NodeBody, directions: int) -> list[list[GateFunction]]:
    names = body.attribute("activations", ())
    alphas, betas = (body.attribute(f"activation_{k}", ()) for k in ("alpha", "beta"))
    try:
        return activations(_kind(body), names, alphas, betas, directions)
    except ValueError as error:
        raise body.refusal(str(error)) from None


def _activation(body: NodeBody, name: str, factors: Mapping[str, float], clip: float) -> Activation:
    def applied(x: str) -> str:
        if clip:
            x = body.op("Clip", x, body.like(-clip, x), body.like(clip, x))
        return body.op(name, x, **factors)

    return applied


def _initial(body: NodeBody, position: int, direction: int, batch: int, hidden: int) -> str:
    """A direction's state before its first step: [batch, hidden]."""
    name = body.input(position)
    if name is None:
        body.room(batch, hidden)
        return body.const(np.zeros((batch, hidden)), body.dtype(body.read(0)))
    axis = 1 if body.attribute("layout", 0) == 1 else 0
    return body.reshape(body.slice(name, axis, direction, direction + 1), batch, hidden)


def _valid(body: NodeBody, steps: int, batch: int) -> list[str] | None:
    """For each step, which sequences of the batch reach it: [batch, 1] of bool.

    None where all sequences are known to have all steps.
    """
    name = body.input(LENGTHS)
    if name is None:
        return None
    if all_last(body.array(name), steps):
        return None
    column = body.reshape(name, batch, 1)
    return [body.op("Less", body.const([[t]], TensorProto.INT32), column) for t in range(steps)]


def _lstm_cell(body: NodeBody, d: _Direction, given: str, state: State) -> State:
    before, memory = state
    gate, inner, outer = d.activations
    product = body.op("MatMul", d.multiplicand(body, before), d.recurrent[0])
    parts = (body.split(x, 1, 4) for x in (given, product))
    i, o, f, c = (body.op("Add", *both) for both in zip(*parts, strict=True))
    if d.peepholes:
        i, f = (
            body.op("Add", x, body.op("Mul", memory, d.peepholes[p])) for x, p in ((i, 0), (f, 2))
        )
    i = gate(i)
    f = body.op("Sub", body.like(1.0, i), i) if body.attribute("input_forget", 0) else gate(f)
    memory = body.op("Add", body.op("Mul", f, memory), body.op("Mul", i, inner(c)))
    if d.peepholes:
        o = body.op("Add", o, body.op("Mul", memory, d.peepholes[1]))
    return body.op("Mul", gate(o), outer(memory)), memory


def _gru_cell(body: NodeBody, d: _Direction, given: str, state: State) -> State:
    (before,) = state
    gate, inner = d.activations
    gz, gr, gh = body.split(given, 1, 3)
    product = body.op("MatMul", before, d.recurrent[0])
    pz, pr, *rest = body.split(product, 1, 4 - len(d.recurrent))
    z, r = gate(body.op("Add", gz, pz)), gate(body.op("Add", gr, pr))
    if rest:
        h = rest[0] if d.hidden_bias is None else body.op("Add", rest[0], d.hidden_bias)
        h = body.op("Mul", r, h)
    else:
        h = body.op("MatMul", body.op("Mul", r, before), d.recurrent[1])
    h = inner(body.op("Add", gh, h))
    # (1 - z) h + z before
    return (body.op("Add", h, body.op("Mul", z, body.op("Sub", before, h))),)


def _rnn_cell(body: NodeBody, d: _Direction, given: str, state: State) -> State:
    product = body.op("MatMul", state[0], d.recurrent[0])
    return (d.activations[0](body.op("Add", given, product)),)
