"""The nodes of a graph inside a node, written into the graph around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from mcfuser.graph.rewrite.known import KnownValues, literal

WrittenNodes = tuple[list[onnx.NodeProto], list[TensorProto]]
"""Nodes and constants in place of a node."""


@dataclass(frozen=True, slots=True)
class InnerGraph:
    """A graph inside a node: its nodes that are no constants, the values that these compute, the
    names of its results, and the names that its constants have in the graph around it."""

    nodes: Sequence[onnx.NodeProto]
    computed: Sequence[str]
    results: Sequence[str]
    constants: Mapping[str, str]


def opened(
    node: onnx.NodeProto, graph: onnx.GraphProto, known: KnownValues
) -> tuple[InnerGraph, list[TensorProto]]:
    """A graph inside a node, and its constants under the names that they have around the node."""
    given = {weight.name: weight for weight in graph.initializer}
    kept = []
    for inner in graph.node:
        value = literal(inner) if inner.op_type == "Constant" and not inner.domain else None
        if value is None:
            kept.append(inner)
        else:
            given[inner.output[0]] = value
    names = {name: known.fresh(f"{node.name}/{name}") for name in sorted(given)}
    constants = []
    for name, value in given.items():
        made = TensorProto()
        made.CopyFrom(value)
        made.name = names[name]
        constants.append(made)
    computed = [name for inner in kept for name in inner.output if name]
    return InnerGraph(kept, computed, [o.name for o in graph.output], names), constants


def copied(
    graph: InnerGraph,
    results: Sequence[str],
    prefix: str,
    known: KnownValues,
    inputs: Mapping[str, str] | None = None,
) -> list[onnx.NodeProto]:
    """The graph's nodes once, whose results have these names; `inputs` are the values around it
    that stand for its inputs.

    What the graph computes gets new names, which begin with `prefix`: another copy may use the same
    ones.
    """
    names = {**graph.constants, **(inputs or {})}
    names |= {name: known.fresh(f"{prefix}/{name}") for name in sorted(graph.computed)}
    nodes = []
    for old in graph.nodes:
        made = onnx.NodeProto()
        made.CopyFrom(old)
        made.name = f"{prefix}/{old.name}"
        _rename(made, names)
        nodes.append(made)
    for result, name in zip(graph.results, results, strict=True):
        source = names.get(result, result)
        nodes.append(helper.make_node("Identity", [source], [name], f"{prefix}/{name}"))
    return nodes


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Writes the new names of values into a node, and into the graphs inside it, which may define
    others of the same name."""
    for values in (node.input, node.output):
        for i, name in enumerate(values):
            values[i] = names.get(name, name)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graph = attribute.g
            own = {w.name for w in graph.initializer} | {value.name for value in graph.input}
            own |= {x for inner in graph.node for x in inner.output if x}
            outer = {old: new for old, new in names.items() if old not in own}
            for inner in graph.node:
                _rename(inner, outer)
            for value in graph.output:
                value.name = outer.get(value.name, value.name)
