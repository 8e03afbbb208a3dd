"""Replaces the nodes of a model for which there is a rewrite."""

from __future__ import annotations

from collections import ChainMap, deque
from dataclasses import dataclass, replace

import onnx
from onnx import helper

from mcfuser.errors import ModelError
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.messages import inside
from mcfuser.graph.read import described, opset
from mcfuser.graph.refusal import refused
from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.branch import WrittenNodes, agreed, guarded, selected, taken, written_out
from mcfuser.graph.rewrite.known import KnownValues
from mcfuser.graph.rewrite.table import REWRITES
from mcfuser.graph.sizes import inferred_shapes, outline


def rewrite(proto: onnx.ModelProto, limits: ModelLimits = DEFAULTS) -> bool:
    """Replaces, in the model, every node for which there is a rewrite, and every If whose condition
    is known or that has several results; whether there was such a node.

    Input shapes must be fixed. Raises ModelError, naming the operator, where a node cannot be
    replaced, or the limit that the replacements exceed.
    """
    every = list(inside(proto.graph, onnx.NodeProto))
    if not any(_key(node) in REWRITES or node.op_type == "If" for node in every):
        return False
    known = KnownValues(proto.opset_import)
    known.add_graph(proto.graph)
    walk = _Walk(opset(proto), limits, len(every))
    walk.graph(proto.graph, known, inferred_shapes(outline(proto)).graph)
    del proto.graph.value_info[:]
    return True


@dataclass
class _Walk:
    """A walk over the nodes of a model in their order.

    `nodes` is the number of them so far, and `bytes` are those of the constants that were added.
    """

    version: int
    limits: ModelLimits
    nodes: int
    bytes: int = 0

    def graph(
        self, graph: onnx.GraphProto, known: KnownValues, inferred: onnx.GraphProto | None
    ) -> None:
        """Replaces nodes of a graph; `inferred` is the graph with what onnx infers about it."""
        twins: dict[str, onnx.NodeProto] = {}
        if inferred is not None:
            known.add_graph(inferred)
            twins = {node.output[0]: node for node in inferred.node if node.output}
        kept: list[onnx.NodeProto] = []
        left = deque(graph.node)
        while left:
            node = left.popleft()
            branch = taken(node, known)
            written = written_out(node, branch, known) if branch is not None else None
            if written is None:
                twin = twins.get(node.output[0]) if node.output else None
                written = self._branches(node, known, twin) or selected(node, known)
            if written is not None:
                nodes, constants = written
                left.extendleft(reversed(nodes))
                for constant in constants:
                    known.add_constant(constant)
                graph.initializer.extend(constants)
                continue
            body = self._body(node, known)
            if body is None:
                kept.append(node)
                known.add_node(node)
                continue
            kept += body.nodes
            graph.initializer.extend(body.constants)
            self.nodes += len(body.nodes) - 1
            self.bytes = body.bytes
        del graph.node[:]
        graph.node.extend(kept)

    def _branches(
        self, node: onnx.NodeProto, known: KnownValues, twin: onnx.NodeProto | None
    ) -> WrittenNodes | None:
        """Replaces nodes in the graphs inside a node, which read the values around it.

        Of an If, one branch may be such that it cannot be computed at the shapes of the inputs, as
        that for another sample rate: then it gives what replaces the If, which is the other branch.
        """
        others = {a.name: a.g for a in twin.attribute} if twin is not None else {}
        given, before = onnx.NodeProto(), (self.nodes, self.bytes)
        if node.op_type == "If":
            given.CopyFrom(node)
        refusals: dict[str, ModelError] = {}
        results: list[list[onnx.TypeProto | None]] = []
        for attribute in (a for a in node.attribute if a.HasField("g")):
            inner = replace(
                known, types=ChainMap({}, known.types), constants=ChainMap({}, known.constants)
            )
            inner.add_graph(attribute.g)
            try:
                self.graph(attribute.g, inner, others.get(attribute.name))
            except ModelError as refusal:
                if node.op_type != "If":
                    raise
                refusals[attribute.name] = refusal
            results.append([inner.types.get(o.name) for o in attribute.g.output])
        if not refusals:
            if node.op_type == "If":
                known.types.update(agreed(node, results))
            return None
        self.nodes, self.bytes = before
        other = next((a for a in given.attribute if a.name not in refusals), None)
        if other is not None:
            written = guarded(node, other.g, other.name == "then_branch", known)
            if written is not None:
                return written
        raise next(iter(refusals.values()))

    def _body(self, node: onnx.NodeProto, known: KnownValues) -> NodeBody | None:
        """The replacement of a node; None where it stays."""
        write = REWRITES.get(_key(node))
        if write is None:
            return None
        body = NodeBody(node, known, self.version, self.limits, self.nodes - 1, self.bytes)
        with refused(f"{described(node, self.version)} cannot be used"):
            results = write(body)
        if results is None:
            return None
        for i, name in enumerate(node.output):
            if name:
                value = results[i] if i < len(results) else None
                if value is None:
                    raise body.refusal(f"its output '{name}' cannot be computed")
                body.nodes.append(helper.make_node("Identity", [value], [name], f"{node.name}/{i}"))
                known.types[name] = known.types[value]
        return body


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return (node.domain, node.op_type)
