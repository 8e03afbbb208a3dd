"""Hostile models, one for each way of hiding, growing, nesting and lying that is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from .seeds import finished, tensor, weight

SECRET = "etc/shadow"


def hidden() -> dict[str, bytes]:
    """Data in another file, at every place where the format allows a tensor.

    The places are found from the format's own description, by filling it in one field at a time.
    """
    made = {}
    for names in _ways(onnx.ModelProto.DESCRIPTOR, ()):
        proto = _good()
        _fill(proto, names)
        made["/".join(names)] = bytes(proto.SerializeToString())
    return made


def _ways(descriptor: Any, before: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of fields that lead to a tensor, through each type twice at most."""
    if descriptor.full_name == TensorProto.DESCRIPTOR.full_name:
        yield before
        return
    for field in descriptor.fields:
        if field.message_type is not None and before.count(field.name) < 2 and len(before) < 9:
            yield from _ways(field.message_type, (*before, field.name))


def _fill(message: Any, names: tuple[str, ...]) -> None:
    for name in names:
        found = getattr(message, name)
        message = found.add() if hasattr(found, "add") else found
    message.name = "stolen"
    message.data_type = TensorProto.UINT8
    message.dims.append(100)
    message.data_location = TensorProto.EXTERNAL
    message.external_data.add(key="location", value=SECRET)


def _good() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [tensor("x", ["n", 4])], [tensor("y", None)], [weight("w", 4, 4)],
    )  # fmt: skip
    return finished(graph)


def _function(name: str, calls: list[str]) -> onnx.FunctionProto:
    """a -> b through calls of other functions, one after another."""
    values = ["a", *(f"v{i}" for i in range(len(calls) - 1)), "b"]
    nodes = [
        helper.make_node(call, [values[i]], [values[i + 1]], domain="own" if call[0] == "F" else "")
        for i, call in enumerate(calls)
    ]
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, sets)


def _calling(functions: list[onnx.FunctionProto]) -> bytes:
    node = helper.make_node("F0", ["x"], ["y"], domain="own")
    graph = helper.make_graph([node], "g", [tensor("x", [2])], [tensor("y", [2])])
    return bytes(finished(graph, functions).SerializeToString())


def doubling(levels: int) -> bytes:
    """Each function calls the next twice."""
    inner = [_function(f"F{i}", [f"F{i + 1}"] * 2) for i in range(levels)]
    return _calling([*inner, _function(f"F{levels}", ["Relu"])])


def deep_calls(levels: int) -> bytes:
    return _calling([
        *(_function(f"F{i}", [f"F{i + 1}"]) for i in range(levels)),
        _function(f"F{levels}", ["Relu"]),
    ])  # fmt: skip


def copied_constant() -> bytes:
    """A function of a megabyte that is called four thousand times."""
    body = [
        helper.make_node("Constant", [], ["c"], value=weight("c", 1 << 18)),
        helper.make_node("ReduceMax", ["c"], ["m"]),
        helper.make_node("Add", ["a", "m"], ["b"]),
    ]
    function = helper.make_function("own", "F9", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    return _calling([_function("F0", ["F1"] * 64), _function("F1", ["F9"] * 64), function])


def branches(depth: int) -> bytes:
    """An If in an If in an If, written as bytes: the library itself writes no more than 100."""
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], "g", [], [tensor("z", [2])])
    data = inner.SerializeToString()
    for _ in range(depth):
        attribute = _field(1, b"then_branch") + _field(6, data) + b"\xa0\x01\x05"
        node = _field(1, b"yes") + _field(2, b"z") + _field(4, b"If") + _field(5, attribute)
        data = _field(1, node) + _field(2, b"g")
    data += _field(11, tensor("x", [2]).SerializeToString())
    data += _field(12, tensor("z", [2]).SerializeToString())
    return b"\x08\x09" + _field(7, data) + _field(8, b"\x10\x12")


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def empty_nodes(count: int) -> bytes:
    return b"\x08\x09" + _field(7, b"\x0a\x00" * count)


def empty_names(count: int) -> bytes:
    """One node that reads as many values without a name."""
    return b"\x08\x09" + _field(7, _field(1, b"\x0a\x00" * count))


def chain(count: int) -> bytes:
    """So many nodes, one after another."""
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    graph = helper.make_graph(nodes, "g", [tensor("v0", [2])], [tensor(f"v{count}", [2])])
    return bytes(finished(graph).SerializeToString())


def _with(
    operator: str, inputs: list[list[float] | int], more: bool = False, **given: Any
) -> bytes:
    """An operator of constants, which makes a giant; `x` is added to it."""
    names, weights = [], []
    for i, numbers in enumerate(inputs):
        dtype = np.int64 if np.asarray(numbers).dtype == np.int64 else np.float32
        weights.append(numpy_helper.from_array(np.array(numbers, dtype), f"c{i}"))
        names.append(f"c{i}")
    if more:
        names = ["x", *names]
    nodes = [
        helper.make_node(operator, names, ["giant"], **given),
        helper.make_node("Cast", ["giant"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["wide"], ["most"], keepdims=0),
        helper.make_node("Add", ["x", "most"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [tensor("x", [2])], [tensor("y", [2])], weights)
    return bytes(finished(graph).SerializeToString())


def joined(levels: int) -> bytes:
    """A row of numbers that is joined to itself again and again, and used as a shape."""
    nodes = [
        helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(levels)
    ]
    nodes.append(helper.make_node("Expand", ["x", f"c{levels}"], ["y"]))
    ones = numpy_helper.from_array(np.array([1], np.int64), "c0")
    graph = helper.make_graph(nodes, "g", [tensor("x", [2])], [tensor("y", None)], [ones])
    return bytes(finished(graph).SerializeToString())


def declared(*extents: int | str) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [tensor("x", list(extents))],
        [tensor("y", None)],
    )  # fmt: skip
    return bytes(finished(graph).SerializeToString())


def lying_weight(*extents: int) -> bytes:
    """A weight whose shape is larger than its data."""
    proto = _good()
    del proto.graph.initializer[0].dims[:]
    proto.graph.initializer[0].dims.extend(extents)
    return bytes(proto.SerializeToString())


def sparse_giant() -> bytes:
    proto = _good()
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.array([1], np.int64), "i")
    sparse = helper.make_sparse_tensor(values, indices, [1 << 20, 1 << 20])
    proto.graph.sparse_initializer.append(sparse)
    return bytes(proto.SerializeToString())


def opset(version: int) -> bytes:
    proto = _good()
    proto.opset_import[0].version = version
    return bytes(proto.SerializeToString())


def named(name: str) -> bytes:
    """A node of an unknown operator with that name."""
    graph = helper.make_graph(
        [helper.make_node("Wish", ["x"], ["y"], name=name)], "g", [tensor("x", [2])],
        [tensor("y", [2])],
    )  # fmt: skip
    return bytes(finished(graph).SerializeToString())


def no_text() -> bytes:
    return named("known name").replace(b"known", b"kn\xff\xfen")


def element_type(number: int) -> bytes:
    proto = _good()
    proto.graph.input[0].type.tensor_type.elem_type = number
    return bytes(proto.SerializeToString())


Build = Callable[[], bytes]


def looping(line: str, steps: str = '""', before: str = "") -> bytes:
    """x changed by a line in a loop that nothing ends but its largest number of steps."""
    return _text(f"""g (float[2, 4] x) => (float[M, N] y) {{
        {before}
        y = Loop({steps}, "", x) <body = b (int64 i, bool c, float[M, N] v)
            => (bool c, float[P, Q] next) {{ {line} }}>
    }}""")


def nested_loops(depth: int) -> bytes:
    """Loops of 10^6 steps in each other."""
    line = "next = Add(v, v)"
    for _ in range(depth):
        line = f"""next = Loop(many, "", v) <body = b (int64 i, bool c, float[M, N] v)
            => (bool c, float[P, Q] next) {{ {line} }}>"""
    return looping(line, "many", "many = Constant<value = int64 {1000000}>()")


def _text(graph: str) -> bytes:
    parsed = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    return bytes(parsed.SerializeToString())


KINDS: dict[str, tuple[Build, str]] = {
    "functions that double": (lambda: doubling(28), "MCFUSER_MAX_NODES"),
    "functions that double for ever": (lambda: doubling(30_000), "MCFUSER_MAX_"),
    "a function that calls itself": (lambda: _calling([_function("F0", ["F0"])]), "calls itself"),
    "functions that call each other": (
        lambda: _calling([_function("F0", ["F1"]), _function("F1", ["F0"])]), "calls itself",
    ),
    "calls nested deep": (lambda: deep_calls(5000), "MCFUSER_MAX_NESTING"),
    "a large function called often": (copied_constant, "MCFUSER_MAX_MODEL_BYTES"),
    "branches nested": (lambda: branches(40), "nested"),
    "branches nested deep": (lambda: branches(10_000), "nested"),
    "10^5 nodes": (lambda: chain(100_000), "100000 nodes"),
    "10^6 empty nodes": (lambda: empty_nodes(1_000_000), "1000000 nodes"),
    "10^7 empty nodes": (lambda: empty_nodes(10_000_000), "at least 10"),
    "10^7 empty names": (lambda: empty_names(10_000_000), "MCFUSER_MAX_FIELDS"),
    "2^31 elements": (lambda: declared(1 << 31), "2147483648 elements"),
    "2^40 elements": (lambda: declared(1 << 20, 1 << 20), "MCFUSER_MAX_ELEMENTS"),
    "more than fits in 64 bits": (lambda: declared(*[(1 << 63) - 1] * 20), "MCFUSER_MAX_ELEMENTS"),
    "1000 dimensions": (lambda: declared(*[1] * 1000), "MCFUSER_MAX_RANK"),
    "a weight larger than its data": (lambda: lying_weight(1 << 10, 4), "holds 64 bytes"),
    "a giant weight without data": (lambda: lying_weight(1 << 40, 4), "MCFUSER_MAX_ELEMENTS"),
    "a weight of negative extent": (lambda: lying_weight(-4, -4), "extent -4"),
    "a sparse giant": (sparse_giant, "MCFUSER_MAX_ELEMENTS"),
    "ConstantOfShape": (lambda: _with("ConstantOfShape", [[1 << 20, 1 << 20]]), "ELEMENTS"),
    "ConstantOfShape of some GB": (
        lambda: _with("ConstantOfShape", [[1 << 29]]), "MCFUSER_MAX_CONSTANT_BYTES",
    ),
    "Expand": (lambda: _with("Expand", [[1.5], [1 << 16, 1 << 16]]), "ELEMENTS"),
    "Tile": (lambda: _with("Tile", [[1.5], [1 << 33]]), "ELEMENTS"),
    "Range": (lambda: _with("Range", [0, 10**12, 1]), "ELEMENTS"),
    "Pad": (lambda: _with("Pad", [[1.5], [0, 10**12]]), "ELEMENTS"),
    "OneHot": (lambda: _with("OneHot", [[1, 2], 10**11, [0.5, 1.5]]), "ELEMENTS"),
    "an input expanded": (lambda: _with("Expand", [[10**10, 2]], more=True), "ELEMENTS"),
    "numbers joined": (lambda: joined(29), "MCFUSER_MAX_CONSTANT_BYTES"),
    "numbers joined far": (lambda: joined(62), "MCFUSER_MAX_"),
    "opset 0": (lambda: opset(0), "version 0"),
    "opset -1": (lambda: opset(-1), "version -1"),
    "opset 10^9": (lambda: opset(10**9), "version 1000000000"),
    "opset 2^62": (lambda: opset(1 << 62), "opset"),
    "no text": (no_text, "UTF-8"),
    "a name of two lines": (lambda: named("a\nb\x1b[31m"), r"a\nb\x1b"),
    "a name of a megabyte": (lambda: named("n" * 1_000_000), "Wish"),
    "unknown element type": (lambda: element_type(99), "element type number 99"),
    "negative element type": (lambda: element_type(-(1 << 31)), "element type number"),
}  # fmt: skip
"""Models that are refused before they are compiled, each with a part of what is said."""
UNROLLED: dict[str, tuple[Build, str]] = {
    "an endless loop": (lambda: looping("next = Add(v, x)"), "MCFUSER_MAX_NODES"),
    "a loop of 2^62 steps": (
        lambda: looping("next = Neg(v)", "most", f"most = Constant<value = int64 {{{1 << 62}}}>()"),
        "MCFUSER_MAX_NODES",
    ),
    "a loop that doubles": (
        lambda: looping("next = Concat<axis = 0>(v, v)", "n", "n = Constant<value = int64 {60}>()"),
        "MCFUSER_MAX_ELEMENTS",
    ),
    "a constant computed in each step": (
        lambda: looping("big = ConstantOfShape(whole) next = Add(v, big)", "n", """
            n = Constant<value = int64 {20000}>() whole = Constant<value = int64[1] {4}>()"""),
        "MCFUSER_MAX_NODES",
    ),
    "loops in loops": (lambda: nested_loops(5), "MCFUSER_MAX_NODES"),
    "a list that grows for ever": (
        lambda: _text("""g (float[2, 4] x) => (float[M, N] y) {
            none = SequenceEmpty<dtype = 1>()
            all = Loop("", "", none) <body = b (int64 i, bool c, seq(float) s)
                => (bool c, seq(float) more) { more = SequenceInsert(s, x) }>
            y = ConcatFromSequence<axis = 0>(all)
        }"""),
        "MCFUSER_MAX_FIELDS",
    ),
}  # fmt: skip
"""Models with loops that are refused once their steps are written out."""
