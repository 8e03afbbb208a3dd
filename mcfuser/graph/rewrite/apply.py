"""Replaces the nodes of a model for which there is a rewrite."""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
from onnx import helper

from mcfuser.chain.recurrence import NO_RECURRENCES, RecurrenceLimits
from mcfuser.errors import ModelError
from mcfuser.graph.decided import Decide
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.messages import inside
from mcfuser.graph.read import described, opset
from mcfuser.graph.refusal import refused
from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.branch import agreed, guarded, selected, settled, taken, written_out
from mcfuser.graph.rewrite.inner import WrittenNodes
from mcfuser.graph.rewrite.known import KnownValues
from mcfuser.graph.rewrite.loop import LOOPS
from mcfuser.graph.rewrite.reviewed import check_reviewed
from mcfuser.graph.rewrite.table import REWRITES
from mcfuser.graph.sizes import inferred_shapes, outline
from mcfuser.graph.weights import NONE, OnnxArray


def rewrite(
    proto: onnx.ModelProto,
    limits: ModelLimits = DEFAULTS,
    weights: Mapping[str, OnnxArray] = NONE,
    integers: bool = True,
    recurrences: RecurrenceLimits = NO_RECURRENCES,
    decide: Decide | None = None,
) -> bool:
    """Replaces, in the model, every node for which there is a rewrite, every loop, and every If
    whose condition is known or that has several results; whether there was such a node.

    Input shapes must be fixed; `weights` are the large ones that the model declares. With
    `integers`, integer weights stay integers, and what they stand for is written out; with
    `recurrences`, recurrent nodes stay that can be one call for a sequence. `decide` gives the
    types of what elements decide (graph.decided). Raises ModelError, naming the operator, where a
    node cannot be replaced, or the limit that the replacements exceed.
    """
    every = list(inside(proto.graph, onnx.NodeProto))
    if not any(_key(node) in REWRITES or node.op_type in ("If", *LOOPS) for node in every):
        return False
    known = KnownValues(proto.opset_import, weights=weights, decide=decide)
    known.add_graph(proto.graph)
    walk = _Walk(opset(proto), limits, len(every), integers, recurrences)
    walk.graph(proto.graph, known, inferred_shapes(outline(proto)).graph)
    del proto.graph.value_info[:]
    return True


@dataclass(frozen=True, slots=True)
class _Place:
    """The graph whose nodes are replaced: what is known of its values, its nodes so far, and the
    nodes of the graph with what onnx infers about it, by their first outputs."""

    graph: onnx.GraphProto
    known: KnownValues
    kept: list[onnx.NodeProto]
    twins: Mapping[str, onnx.NodeProto]

    def add_constants(self, constants: Iterable[onnx.TensorProto]) -> None:
        """Adds constants to the graph."""
        for constant in constants:
            self.known.add_constant(constant)
            self.graph.initializer.append(constant)


@dataclass
class _Walk:
    """A walk over the nodes of a model in their order.

    `nodes` is the number of them so far, `bytes` are those of the constants that were added, and
    `written` those of the nodes of loops.
    """

    version: int
    limits: ModelLimits
    nodes: int
    integers: bool
    recurrences: RecurrenceLimits
    bytes: int = 0
    written: int = 0

    def graph(
        self, graph: onnx.GraphProto, known: KnownValues, inferred: onnx.GraphProto | None
    ) -> None:
        """Replaces nodes of a graph; `inferred` is the graph with what onnx infers about it."""
        twins: dict[str, onnx.NodeProto] = {}
        if inferred is not None:
            known.add_graph(inferred)
            twins = {node.output[0]: node for node in inferred.node if node.output}
        kept: list[onnx.NodeProto] = []
        self._replace(_Place(graph, known, kept, twins), graph.node)
        del graph.node[:]
        graph.node.extend(kept)
        _check_tensors(graph, known)

    def _replace(self, place: _Place, nodes: Iterable[onnx.NodeProto]) -> None:
        """Writes nodes, or what replaces them, behind those of a graph so far."""
        known, left = place.known, deque(nodes)
        while left:
            node = left.popleft()
            if node.op_type in LOOPS and not node.domain:
                self._repeat(place, node)
                continue
            branch = taken(node, known)
            written = written_out(node, branch, known) if branch is not None else None
            if written is None:
                twin = place.twins.get(node.output[0]) if node.output else None
                written = self._branches(node, known, twin) or selected(node, known)
            if written is not None:
                left.extendleft(reversed(written[0]))
                place.add_constants(written[1])
                continue
            body = self._body(node, known)
            if body is None:
                place.kept.append(node)
                known.add_node(node)
                continue
            self._flush(place, body)
            self.nodes -= 1

    def _repeat(self, place: _Place, node: onnx.NodeProto) -> None:
        """Writes the steps of a loop, each when the one before it has been replaced in turn."""
        body = self._empty(node, place.known)
        what, steps = described(node, self.version), LOOPS[node.op_type](body)
        results: Sequence[str | None] | None = None
        while results is None:
            with refused(f"{what} cannot be used"):
                try:
                    nodes, constants = next(steps)
                except StopIteration as end:
                    results, nodes, constants = end.value, [], []
            self._flush(place, body)
            place.add_constants(constants)
            self.nodes += len(nodes)
            self.written += sum(n.ByteSize() for n in nodes)
            self.limits.check(
                "model_bytes", self.written, f"the model has {{}} bytes with {what} written out"
            )
            self._replace(place, nodes)
            body.others, body.bytes = self.nodes, self.bytes
        _name_results(body, results)
        self._flush(place, body)

    def _flush(self, place: _Place, body: NodeBody) -> None:
        """Moves what was written in place of a node into its graph."""
        place.kept.extend(body.nodes)
        place.graph.initializer.extend(body.constants)
        self.nodes += len(body.nodes)
        self.bytes = body.bytes
        body.nodes, body.constants = [], []

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
        values: list[list[OnnxArray | None]] = []
        for attribute in (a for a in node.attribute if a.HasField("g")):
            inner = replace(
                known, types=ChainMap({}, known.types), constants=ChainMap({}, known.constants),
                sequences=ChainMap({}, known.sequences),
            )  # fmt: skip
            inner.add_graph(attribute.g)
            try:
                self.graph(attribute.g, inner, others.get(attribute.name))
            except ModelError as refusal:
                if node.op_type != "If":
                    raise
                refusals[attribute.name] = refusal
            results.append([inner.types.get(o.name) for o in attribute.g.output])
            values.append([inner.array(o.name) for o in attribute.g.output])
        if not refusals:
            if node.op_type == "If":
                known.types.update(agreed(node, results))
                known.constants.update(settled(node, values))
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
        body = self._empty(node, known)
        with refused(f"{described(node, self.version)} cannot be used"):
            check_reviewed(body)
            results = write(body)
        if results is None:
            return None
        _name_results(body, results)
        return body

    def _empty(self, node: onnx.NodeProto, known: KnownValues) -> NodeBody:
        others = self.nodes - 1
        return NodeBody(
            node, known, self.version, self.limits, others, self.bytes, integers=self.integers,
            recurrences=self.recurrences,
        )  # fmt: skip


def _name_results(body: NodeBody, results: Sequence[str | None]) -> None:
    """Gives the values that stand for a node's outputs the names of these."""
    node, known = body.node, body.known
    for i, name in enumerate(node.output):
        if not name:
            continue
        value = results[i] if i < len(results) else None
        if value is None:
            raise body.refusal(f"its output '{name}' cannot be computed")
        if value in known.sequences:
            known.sequences[name] = known.sequences[value]
            continue
        body.nodes.append(helper.make_node("Identity", [value], [name], f"{node.name}/{i}"))
        if value in known.types:
            known.types[name] = known.types[value]
        if value in known.constants:
            known.constants[name] = known.constants[value]


def _check_tensors(graph: onnx.GraphProto, known: KnownValues) -> None:
    """Raises ModelError where a sequence is left: an output is one, or a node that has no rewrite
    for it reads one."""
    for node in graph.node:
        for name in node.input:
            if name in known.sequences:
                raise ModelError(
                    f"node '{node.name}' ({node.op_type}) reads the sequence '{name}'; export the "
                    "model without it"
                )
    for value in graph.output:
        if value.name in known.sequences:
            raise ModelError(
                f"output '{value.name}' is a sequence, and a module gives tensors; export the "
                "model with an output for each of them"
            )


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return (node.domain, node.op_type)
