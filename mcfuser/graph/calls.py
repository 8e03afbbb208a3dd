"""The size of a model after each call of its functions is replaced by the function's body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx

from mcfuser.errors import ModelError
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.messages import inside

_Key = tuple[str, str, str]
"""A function's domain, name and overload."""


@dataclass(frozen=True, slots=True)
class _Size:
    nodes: int = 0
    bytes: int = 0
    depth: int = 0


def check_calls(proto: onnx.ModelProto, limits: ModelLimits) -> None:
    """Raises ModelError where functions call themselves, or their calls exceed the limits.

    Nothing is expanded: each function is counted once, and the sizes of those that it calls are
    added.
    """
    functions: dict[_Key, onnx.FunctionProto] = {}
    for f in proto.functions:
        key = (f.domain, f.name, f.overload)
        if key in functions:
            raise ModelError(f"function '{f.name}' of domain '{f.domain}' is defined twice")
        functions[key] = f
    if not functions:
        return
    counted = _Counted(functions, limits)
    size = counted.size(inside(proto.graph, onnx.NodeProto), proto.graph.ByteSize(), ())
    limits.check("nodes", size.nodes, "the model has {} nodes with its functions written out")
    limits.check("model_bytes", size.bytes, "the model has {} bytes with its functions written out")


@dataclass
class _Counted:
    functions: Mapping[_Key, onnx.FunctionProto]
    limits: ModelLimits
    sizes: dict[_Key, _Size] = field(default_factory=dict)

    def size(self, nodes: Iterable[onnx.NodeProto], own: int, callers: tuple[_Key, ...]) -> _Size:
        """The size of these nodes, of `own` bytes, once expanded; `callers` are the functions that
        they are in."""
        count, size, depth = 0, own, 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key not in self.functions:
                count += 1
                continue
            called = self._called(key, callers)
            count, size = count + called.nodes, size + called.bytes
            depth = max(depth, called.depth + 1)
        return _Size(count, size, depth)

    def _called(self, key: _Key, callers: tuple[_Key, ...]) -> _Size:
        if key in callers:
            raise ModelError(
                f"function '{key[1]}' of domain '{key[0]}' calls itself; ONNX has no recursion"
            )
        what = f"calls of function '{key[1]}' of domain '{key[0]}' are nested {{}} deep"
        if key not in self.sizes:
            self.limits.check("nesting", len(callers) + 1, what)
            body = self.functions[key]
            nodes = inside(body, onnx.NodeProto)
            self.sizes[key] = self.size(nodes, body.ByteSize(), (*callers, key))
        self.limits.check("nesting", len(callers) + 1 + self.sizes[key].depth, what)
        return self.sizes[key]
