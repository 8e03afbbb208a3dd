"""Makes one convolution of several of one value whose results are added up.

Convolutions are linear, so their weights can be added instead. Networks that are trained with such
branches (RepVGG's, MobileOne's) are often exported before anybody has done so. A normalization of
the value, and the value itself, are convolutions of single positions, and are added, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mcfuser.graph.messages import inside
from mcfuser.graph.weights import OnnxModel, OnnxPart, with_parts

Reals = NDArray[np.float64]
_SIGNS: Mapping[str, tuple[float, float]] = {"Add": (1.0, 1.0), "Sub": (1.0, -1.0)}


@dataclass(frozen=True, slots=True)
class Taps:
    """What a window reads along a dimension: from its place the positions `first`, `first + apart`
    .. `last`, of which the last window's last one lies `after` positions past the data's end."""

    first: int
    last: int
    apart: int
    after: int

    @property
    def count(self) -> int:
        return (self.last - self.first) // self.apart + 1

    def joined(self, other: Taps) -> Taps:
        """The positions of both, and those between them."""
        steps = [t.apart for t in (self, other) if t.count > 1]
        apart = math.gcd(*steps, self.first - other.first) or 1
        return replace(
            self, first=min(self.first, other.first), last=max(self.last, other.last), apart=apart
        )


@dataclass(frozen=True)
class Branch:
    """A convolution of a value with `weight` [columns, depth, ..], in groups, and `bias` [columns],
    float64."""

    weight: Reals
    bias: Reals
    taps: tuple[Taps, ...]
    strides: tuple[int, ...]
    groups: int

    @property
    def positions(self) -> int:
        """Positions of a window."""
        return math.prod(t.count for t in self.taps)

    def wider(self, taps: Sequence[Taps]) -> Reals:
        """The weights of windows with these taps, which are 0 where this one has none."""
        wide = np.zeros((*self.weight.shape[:2], *(t.count for t in taps)))
        within = tuple(
            slice((own.first - t.first) // t.apart, (own.last - t.first) // t.apart + 1,
                  own.apart // t.apart if own.count > 1 else 1)
            for own, t in zip(self.taps, taps, strict=True)
        )  # fmt: skip
        wide[(slice(None), slice(None), *within)] = self.weight
        return wide

    def times(self, sign: float) -> Branch:
        return replace(self, weight=sign * self.weight, bias=sign * self.bias)

    def plus(self, other: Branch, sign: float) -> Branch | None:
        """Both, the other one with a sign; None where they are no one convolution, or one that has
        more to compute than both."""
        same = self.weight.shape[:2] == other.weight.shape[:2] and self.groups == other.groups
        ends = [t.after for t in self.taps] == [t.after for t in other.taps]
        if not (same and ends and self.strides == other.strides):
            return None
        taps = tuple(a.joined(b) for a, b in zip(self.taps, other.taps, strict=True))
        if math.prod(t.count for t in taps) > self.positions + other.positions:
            return None
        weight = self.wider(taps) + sign * other.wider(taps)
        return replace(self, weight=weight, bias=self.bias + sign * other.bias, taps=taps)

    def scaled(self, scale: Reals, bias: Reals) -> Branch | None:
        """A scale and a bias for each channel of the same value as a convolution that can be added;
        None where this one has other channels than the value."""
        columns, depth = self.weight.shape[:2]
        if not scale.shape == bias.shape == (columns,) == (depth * self.groups,):
            return None
        weight = np.zeros((columns, depth))
        weight[np.arange(columns), np.arange(columns) % depth] = scale
        here = tuple(Taps(0, 0, 1, 0) for _ in self.taps)
        shaped = weight.reshape(columns, depth, *(1 for _ in here))
        return Branch(shaped, bias, here, tuple(1 for _ in here), self.groups)


@dataclass(frozen=True, slots=True)
class _Addend:
    """A value that is added or subtracted, and its place among the others."""

    place: int
    name: str
    sign: float


@dataclass(frozen=True)
class _Graph:
    """The nodes of a model, the number of the one that computes a value, how often values are read,
    and the constants."""

    model: OnnxModel
    nodes: Sequence[onnx.NodeProto]
    makers: Mapping[str, int]
    readers: Mapping[str, int]
    constants: Mapping[str, onnx.TensorProto]

    def maker(self, name: str, *kinds: str) -> onnx.NodeProto | None:
        """The node that computes a value which is read once, if it is of one of these kinds."""
        i = self.makers.get(name)
        if i is None or self.readers.get(name) != 1:
            return None
        node = self.nodes[i]
        return node if node.op_type in kinds and not node.domain else None

    def array(self, name: str) -> Reals | None:
        """A float32 constant as float64; None for any other value."""
        t = self.constants.get(name)
        if t is None or t.data_type != TensorProto.FLOAT:
            return None
        return np.asarray(self.model.array(t), np.float64)


def combine_branches(model: OnnxModel) -> OnnxModel:
    """The model in which float32 convolutions of one value that are added up are one; the same
    model where there are none."""
    graph = _graph(model)
    found = {root: both for root in _roots(graph) if (both := _combined(graph, root)) is not None}
    if not found:
        return model
    parts = {root: part for root, (part, _) in found.items()}
    return with_parts(model, parts, {i for _, gone in found.values() for i in gone})


def _graph(model: OnnxModel) -> _Graph:
    graph = model.proto.graph
    readers = Counter(name for node in inside(graph, onnx.NodeProto) for name in node.input)
    readers.update(o.name for o in graph.output for _ in range(2))
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output}
    constants = {t.name: t for t in graph.initializer}
    return _Graph(model, list(graph.node), makers, readers, constants)


def _roots(graph: _Graph) -> Iterator[int]:
    """The sums that are no addend of another one alone."""
    inner = {
        graph.makers[name]
        for node in graph.nodes if node.op_type in _SIGNS and not node.domain
        for name in node.input if graph.maker(name, *_SIGNS) is not None
    }  # fmt: skip
    for i, node in enumerate(graph.nodes):
        if node.op_type in _SIGNS and not node.domain and i not in inner:
            yield i


def _addends(graph: _Graph, root: int) -> tuple[list[_Addend], set[int]]:
    """What a sum adds up, and the numbers of the nodes that do."""
    addends, sums, left = list[_Addend](), set[int](), [(root, 1.0)]
    while left:
        i, sign = left.pop()
        sums.add(i)
        for name, own in zip(graph.nodes[i].input, _SIGNS[graph.nodes[i].op_type], strict=True):
            if graph.maker(name, *_SIGNS) is None:
                addends.append(_Addend(len(addends), name, sign * own))
            else:
                left.append((graph.makers[name], sign * own))
    return addends, sums


def _combined(graph: _Graph, root: int) -> tuple[OnnxPart, set[int]] | None:
    """A sum with one convolution in place of several, and the nodes that it replaces; None where it
    has no such."""
    addends, sums = _addends(graph, root)
    data = {a: _data(graph, a.name) for a in addends}
    several = {x for x, count in Counter(data.values()).items() if count > 1}
    convolutions = {
        a: b for a in addends
        if data[a] in several and (b := _convolution(graph, a.name)) is not None
    }  # fmt: skip
    widest = sorted(addends, key=lambda a: -_size(convolutions.get(a)))
    for first in (a for a in widest if a in convolutions):
        total, taken = convolutions[first].times(first.sign), [first]
        for a in (a for a in widest if a is not first and data[a] == data[first]):
            branch = convolutions.get(a) or _channels(graph, a.name, data[a], total)
            both = total.plus(branch, a.sign) if branch is not None else None
            if both is not None:
                total = both
                taken.append(a)
        if len(taken) > 1:
            left = [a for a in addends if a not in taken]
            part = _written(graph, graph.nodes[root].output[0], first, left, total)
            return part, sums | {graph.makers[a.name] for a in taken if a.name != data[a]}
    return None


def _size(branch: Branch | None) -> int:
    return branch.positions if branch is not None else 0


def _data(graph: _Graph, name: str) -> str:
    """The value that the convolution or the normalization reads which computes a value; any other
    value itself."""
    maker = graph.maker(name, "Conv", "BatchNormalization")
    return maker.input[0] if maker is not None else name


def _convolution(graph: _Graph, name: str) -> Branch | None:
    """The convolution that computes a value; None where it is none with float32 constants."""
    node = graph.maker(name, "Conv")
    weight = graph.array(node.input[1]) if node is not None else None
    if node is None or weight is None:
        return None
    biased = len(node.input) > 2 and node.input[2]
    bias = graph.array(node.input[2]) if biased else np.zeros(len(weight))
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if bias is None or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    rank = weight.ndim - 2
    pads = list(given.get("pads", [0] * 2 * rank))
    apart, strides = (tuple(given.get(k, [1] * rank)) for k in ("dilations", "strides"))
    lasts = [(n - 1) * d - p for n, d, p in zip(weight.shape[2:], apart, pads, strict=False)]
    taps = tuple(
        Taps(-pads[i], last, apart[i], pads[rank + i] - last) for i, last in enumerate(lasts)
    )
    return Branch(weight, bias, taps, strides, int(given.get("group", 1)))


def _channels(graph: _Graph, name: str, data: str, beside: Branch) -> Branch | None:
    """The value itself, or its normalization, as a convolution beside another one."""
    columns = len(beside.weight)
    if name == data:
        return beside.scaled(np.ones(columns), np.zeros(columns))
    node = graph.maker(name, "BatchNormalization")
    if node is None or len(node.output) > 1:
        return None
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    scale, bias, mean, variance = (graph.array(n) for n in node.input[1:])
    if scale is None or bias is None or mean is None or variance is None:
        return None
    if given.get("training_mode", 0) or not given.get("spatial", 1):
        return None
    scale = scale / np.sqrt(variance + given.get("epsilon", 1e-5))
    return beside.scaled(scale, bias - mean * scale)


def _written(
    graph: _Graph, out: str, first: _Addend, left: Sequence[_Addend], total: Branch
) -> OnnxPart:
    """A sum `out` of one convolution, which has the name of the `first` that it is made of, and of
    what is `left`."""
    node, name = graph.maker(first.name, "Conv"), f"{out}_branches"
    assert node is not None
    constants = {
        f"{name}_weight": total.weight.astype(np.float32),
        f"{name}_bias": total.bias.astype(np.float32),
    }
    nodes = [
        helper.make_node(
            "Conv", [node.input[0], *constants], [name if left else out], node.name,
            kernel_shape=[t.count for t in total.taps], dilations=[t.apart for t in total.taps],
            strides=[*total.strides], group=total.groups,
            pads=[*(-t.first for t in total.taps), *(t.after + t.last for t in total.taps)],
        )
    ]  # fmt: skip
    for i, a in enumerate(left):
        result, kind = out if a is left[-1] else f"{name}_{i}", "Add" if a.sign > 0 else "Sub"
        nodes.append(helper.make_node(kind, [nodes[-1].output[0], a.name], [result], result))
    return OnnxPart(nodes, constants)
