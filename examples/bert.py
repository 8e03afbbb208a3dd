"""Writes a BERT-like encoder as ONNX, with seeded random weights; nothing but onnx and numpy.

    python examples/bert.py bert.onnx --layers 2 --hidden 256 --heads 4 --sequence 128

With --dynamic, batch and sequence are known at run time, and --sequence is the longest.
The graph is spelled the way exporters spell it: a product and a bias instead of a linear layer,
attention by reshape and transpose, the exact GELU by Erf, the mask as (1 - mask) * -10000.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Encoder:
    """The extents of an encoder; `inner` is the width of the feed-forward layer. Where it is
    `dynamic`, its inputs have any batch, and at most `sequence` tokens."""

    layers: int = 2
    hidden: int = 256
    heads: int = 4
    sequence: int = 128
    inner: int = 1024
    vocabulary: int = 1000
    batch: int = 1
    seed: int = 0
    dynamic: bool = False

    @property
    def rows(self) -> tuple[int, int]:
        """Batch and sequence in the shape of a Reshape, where 0 keeps an extent."""
        return (0, 0) if self.dynamic else (self.batch, self.sequence)


@dataclass
class Graph:
    """Nodes and weights in the order in which they are written."""

    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.0, shift: float = 0.0) -> str:
        """A normal array around `shift`; the scale is 1/sqrt(first extent) where none is given."""
        spread = scale or 1 / math.sqrt(shape[0])
        return self.array(name, shift + spread * self.random.standard_normal(shape))

    def array(self, name: str, value: NDArray[np.generic]) -> str:
        kept = value.astype(np.float32) if value.dtype.kind == "f" else value
        self.weights[name] = numpy_helper.from_array(kept, name)
        return name

    def scalar(self, value: float) -> str:
        return self.array(f"scalar_{value:g}", np.array(float(value)))

    def shape(self, *extents: int) -> str:
        return self.array("shape_" + "x".join(map(str, extents)), np.array(extents, np.int64))


def linear(g: Graph, x: str, name: str, rows: int, columns: int) -> str:
    product = g.op("MatMul", x, g.weight(f"{name}.weight", rows, columns))
    return g.op("Add", g.weight(f"{name}.bias", columns, scale=0.02), product)


def norm(g: Graph, x: str, name: str, hidden: int) -> str:
    scale = g.weight(f"{name}.scale", hidden, scale=0.05, shift=1.0)
    shift = g.weight(f"{name}.shift", hidden, scale=0.05)
    return g.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-12)


def attention(g: Graph, x: str, mask: str, name: str, e: Encoder) -> str:
    depth = e.hidden // e.heads
    split = g.shape(*e.rows, e.heads, depth)
    queries, keys, values = (
        g.op("Reshape", linear(g, x, f"{name}.{part}", e.hidden, e.hidden), split)
        for part in ("query", "key", "value")
    )
    scores = g.op(
        "MatMul",
        g.op("Transpose", queries, perm=[0, 2, 1, 3]),
        g.op("Transpose", keys, perm=[0, 2, 3, 1]),
    )
    scaled = g.op("Add", g.op("Div", scores, g.scalar(math.sqrt(depth))), mask)
    weights = g.op("Softmax", scaled, axis=-1)
    mixed = g.op("MatMul", weights, g.op("Transpose", values, perm=[0, 2, 1, 3]))
    joined = g.op("Transpose", mixed, perm=[0, 2, 1, 3])
    return g.op("Reshape", joined, g.shape(*e.rows, e.hidden))


def gelu(g: Graph, x: str) -> str:
    """x/2 (1 + erf(x / sqrt 2)), in the order in which exporters write it."""
    erf = g.op("Erf", g.op("Div", x, g.scalar(math.sqrt(2))))
    return g.op("Mul", g.op("Mul", x, g.op("Add", erf, g.scalar(1))), g.scalar(0.5))


def layer(g: Graph, x: str, mask: str, name: str, e: Encoder) -> str:
    mixed = linear(g, attention(g, x, mask, name, e), f"{name}.output", e.hidden, e.hidden)
    x = norm(g, g.op("Add", mixed, x), f"{name}.norm", e.hidden)
    inner = gelu(g, linear(g, x, f"{name}.inner", e.hidden, e.inner))
    outer = linear(g, inner, f"{name}.outer", e.inner, e.hidden)
    return norm(g, g.op("Add", outer, x), f"{name}.outer_norm", e.hidden)


def embedding(g: Graph, e: Encoder) -> str:
    words = g.op(
        "Gather", g.weight("words", e.vocabulary, e.hidden, scale=0.5), "input_ids", axis=0
    )
    places = g.weight("positions", e.sequence, e.hidden, scale=0.1)
    if e.dynamic:
        first, second = (g.array(f"axis_{i}", np.array([i], np.int64)) for i in (0, 1))
        end = g.array("axis_2", np.array([2], np.int64))
        length = g.op("Slice", g.op("Shape", "input_ids"), second, end)
        places = g.op("Slice", places, first, length, first)
    return norm(g, g.op("Add", words, places), "embedding_norm", e.hidden)


def additive_mask(g: Graph) -> str:
    wide = g.op("Unsqueeze", "attention_mask", g.array("mask_axes", np.array([1, 2], np.int64)))
    kept = g.op("Cast", wide, to=TensorProto.FLOAT)
    return g.op("Mul", g.op("Sub", g.scalar(1), kept), g.scalar(-1e4))


def encoder(e: Encoder) -> onnx.ModelProto:
    """The model: input_ids and attention_mask [batch, sequence] -> hidden states, float32."""
    g = Graph(np.random.default_rng(e.seed))
    mask = additive_mask(g)
    x = embedding(g, e)
    for i in range(e.layers):
        x = layer(g, x, mask, f"layer{i}", e)
    g.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"], name="output"))
    extents = ["batch", "sequence"] if e.dynamic else [e.batch, e.sequence]
    graph = helper.make_graph(
        g.nodes,
        "encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, extents)
            for name in ("input_ids", "attention_mask")
        ],
        [
            helper.make_tensor_value_info(
                "last_hidden_state", TensorProto.FLOAT, [*extents, e.hidden]
            )
        ],
        list(g.weights.values()),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def arguments() -> Iterator[tuple[str, int, str]]:
    e = Encoder()
    yield "layers", e.layers, "encoder layers"
    yield "hidden", e.hidden, "width of the hidden state"
    yield "heads", e.heads, "attention heads; they divide the width"
    yield "sequence", e.sequence, "tokens"
    yield "inner", 0, "width of the feed-forward layer; four times the hidden width if 0"
    yield "vocabulary", e.vocabulary, "entries of the word embedding"
    yield "batch", e.batch, "sequences at once"
    yield "seed", e.seed, "seed of the weights"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Writes a BERT-like encoder as ONNX.")
    parser.add_argument("path", help="the file to write")
    for name, default, meaning in arguments():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} ({default})")
    parser.add_argument(
        "--dynamic", action="store_true", help="batch and sequence are known at run time"
    )
    given = vars(parser.parse_args(words))
    path = given.pop("path")
    given["inner"] = given["inner"] or 4 * given["hidden"]
    if given["hidden"] % given["heads"]:
        parser.error(f"{given['heads']} heads do not divide a width of {given['hidden']}")
    model = encoder(Encoder(**given))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    print(f"{path}: {len(model.graph.node)} nodes, {model.ByteSize() / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
