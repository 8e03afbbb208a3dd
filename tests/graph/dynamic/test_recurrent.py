"""Recurrences over sequences whose length is known at run time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from mcfuser.chain.recurrence import RecurrenceLimits
from mcfuser.errors import ModelError
from mcfuser.extents import InputShapes
from mcfuser.measure.tolerance import difference
from tests.support.dynamic_nets import drawn, dynamic, in_bucket, run, spans, whole_bucket
from tests.support.nets import Net
from tests.support.recurrent_nodes import GATES

HIDDEN, WIDTH = 3, 4
LOOPS = RecurrenceLimits(("float32",))


def recurrent(
    kind: str, directions: int, steps: int | str, batch: int | str, slots: str = "",
    width: int | str = WIDTH,
) -> onnx.ModelProto:  # fmt: skip
    """A model of one node, whose inputs besides the sequence are named in `slots`."""
    net = Net()
    x = net.input("x", steps, batch, width)
    gates = GATES[kind] * HIDDEN
    weights = [net.weight(directions, gates, n) for n in (WIDTH, HIDDEN)]
    inputs = [x, *weights, net.weight(directions, 2 * gates) if "B" in slots else ""]
    inputs.append(net.input("lengths", batch, dtype=np.int32) if "lengths" in slots else "")
    inputs.append(net.input("h", directions, batch, HIDDEN) if "h" in slots.split() else "")
    while not inputs[-1]:
        inputs.pop()
    way = "bidirectional" if directions == 2 else "reverse"
    count = 3 if kind == "LSTM" else 2
    first = net.op(kind, *inputs, outputs=count, hidden_size=HIDDEN, direction=way)
    every = [first.removesuffix("0") + str(i) for i in range(count)]
    return net.model(*every)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("slots", ["", "B lengths h"])
def test_a_bucket_computes_every_length_and_batch(kind: str, directions: int, slots: str) -> None:
    model = recurrent(kind, directions, "t", "n", slots)
    shapes: InputShapes = {"x": (spans(1, 5), spans(1, 3), WIDTH)}
    if "lengths" in slots:
        shapes |= {"lengths": (spans(1, 3),), "h": (directions, spans(1, 3), HIDDEN)}
    found = dynamic(model, shapes, recurrences=LOOPS)
    bucket = whole_bucket(found)
    assert [n.op_type for n in bucket.model.proto.graph.node].count(kind) == 1
    for steps in range(1, 6):
        for batch in (1, 3):
            point = {"t": steps, "n": batch}
            feeds = drawn(found, point)
            if "lengths" in feeds:
                feeds["lengths"] = np.minimum(feeds["lengths"], steps)
            wanted = run(found.fixed(point), feeds)
            for one, other in zip(in_bucket(bucket, feeds, point), wanted, strict=True):
                assert difference(one, other) <= 1e-5, f"at {point}"


def test_a_batch_alone_needs_no_lengths() -> None:
    model = recurrent("GRU", 1, 4, "n")
    found = dynamic(model, {"x": (4, spans(1, 3), WIDTH)}, recurrences=LOOPS)
    (node,) = (n for n in whole_bucket(found).model.proto.graph.node if n.op_type == "GRU")
    assert not any(node.input[4:])


def test_the_width_of_a_sequence_is_a_number() -> None:
    model = recurrent("RNN", 1, 4, 1, width="w")
    with pytest.raises(ModelError, match=r"dimension 2 of 'x', which products sum over"):
        whole_bucket(dynamic(model, {"x": (4, 1, spans(2, WIDTH))}, recurrences=LOOPS))


def test_steps_that_are_written_out_are_as_many_at_every_shape() -> None:
    model = recurrent("GRU", 1, "t", 1)
    with pytest.raises(ModelError, match=r"written in another way at t=.* than at t=5"):
        whole_bucket(dynamic(model, {"x": (spans(2, 5), 1, WIDTH)}))
