"""The large weights inside a model's file, taken out of its message before protobuf reads it.

Protobuf copies what it reads, and so does whoever writes the message anew or is given it: a large
model would be in memory several times. Such a weight becomes an array beside the message, as one in
a file of its own does (graph.weights). It is copied once, for in the file it is not aligned.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from mcfuser.graph.constants import LARGE, element_bytes
from mcfuser.graph.external import Octets
from mcfuser.graph.messages import inside
from mcfuser.graph.weights import OnnxArray, aligned_copy
from mcfuser.graph.wire import LENGTH, ModelBytes, fields

APART = 64 << 20
"""Bytes from which on a model's file is mapped, and its weights are taken out of it."""
_GRAPH = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
_RAW_DATA = TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number
_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_UNREAD = frozenset({"MatMul", "Gemm", "Conv", "Gather"})
"""Operators whose weights no rewrite of the message asks for."""
_DESCRIBING = frozenset({
    "name", "dims", "data_type", "data_location", "doc_string", "metadata_props",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TakenData:
    """The place in a model's bytes of the data of an initializer, and that one's number."""

    number: int
    start: int
    end: int


def mapped(path: Path) -> ModelBytes:
    """The bytes of a model's file; a large one is mapped, and not in memory."""
    if path.stat().st_size < APART:
        return path.read_bytes()
    with path.open("rb") as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ)


def released(data: bytes | mmap) -> None:
    """Gives the memory back that the bytes of a mapped file take; they are read again when they
    are asked for."""
    if isinstance(data, mmap):
        data.madvise(MADV_DONTNEED)


def lightened(model: ModelBytes) -> tuple[bytes, list[TakenData]]:
    """The message of a model without the raw data of its graph's large initializers, and these.

    The bytes are a protobuf message to their end (graph.wire.scan).
    """
    data = memoryview(model)
    taken: list[TakenData] = []
    pieces: list[memoryview | bytes] = []
    done = number = 0
    for at, start, end in _below(data, 0, len(data), _GRAPH):
        inner: list[memoryview | bytes] = []
        begun = start
        for tensor_at, tensor, tensor_end in _below(data, start, end, _INITIALIZER):
            large = tensor_end - tensor > LARGE
            raw = list(_below(data, tensor, tensor_end, _RAW_DATA)) if large else []
            if len(raw) == 1 and raw[0][2] - raw[0][1] > LARGE:
                ((raw_at, raw_start, raw_end),) = raw
                left = [data[tensor:raw_at], data[raw_end:tensor_end]]
                inner += [data[begun:tensor_at], *_written(_INITIALIZER, left)]
                begun = tensor_end
                taken.append(TakenData(number, raw_start, raw_end))
            number += 1
        inner.append(data[begun:end])
        pieces += [data[done:at], *_written(_GRAPH, inner)]
        done = end
    return b"".join([*pieces, data[done:]]), taken


def embedded(
    proto: onnx.ModelProto, model: ModelBytes, taken: Sequence[TakenData]
) -> dict[str, OnnxArray]:
    """The large weights of a model by name, which its message declares from now on; `proto` is that
    of `lightened`, which is changed.

    All other data that was taken is put back: what is damaged, and what a rewrite may ask for.
    """
    weights: dict[str, OnnxArray] = {}
    if not taken:
        return weights
    data = np.frombuffer(model, np.uint8)
    names = Counter(t.name for t in proto.graph.initializer)
    read = {name for node in inside(proto, onnx.NodeProto) for name in _asked(node)}
    read |= {o.name for o in proto.graph.output}
    for part in taken:
        tensor, octets = proto.graph.initializer[part.number], data[part.start : part.end]
        if names[tensor.name] == 1 and tensor.name not in read and _is_plain(tensor, len(octets)):
            weights[tensor.name] = _copied(octets, tensor)
            tensor.data_location = TensorProto.EXTERNAL
        else:
            tensor.raw_data = octets.tobytes()
        released(model)
    return weights


def _asked(node: onnx.NodeProto) -> Sequence[str]:
    """The operands of a node whose elements a rewrite may ask for."""
    return () if node.op_type in _UNREAD and not node.domain else node.input


def _is_plain(tensor: TensorProto, size: int) -> bool:
    """Whether a tensor of floats has as many bytes as its shape asks for, and no other data."""
    if tensor.data_type not in _TYPES or tensor.data_location != TensorProto.DEFAULT:
        return False
    if any(field.name not in _DESCRIBING for field, _ in tensor.ListFields()):
        return False
    known = all(d >= 0 for d in tensor.dims)
    return known and element_bytes(tensor.data_type, math.prod(tensor.dims)) == size


def _copied(octets: Octets, tensor: TensorProto) -> OnnxArray:
    """An aligned array with the elements of a tensor, which nobody may write to."""
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    array = aligned_copy(octets.view(dtype).reshape(tuple(tensor.dims)))
    array.flags.writeable = False
    return array


def _below(data: memoryview, at: int, end: int, number: int) -> Iterator[tuple[int, int, int]]:
    """Where each field of that number, of a message in data[at:end], begins, and where its bytes
    begin and end; of fields that have a length alone."""
    for begin, tag, start, stop in fields(data, at, end):
        if tag == number << 3 | LENGTH:
            yield begin, start, stop


def _written(number: int, parts: Sequence[memoryview | bytes]) -> Iterator[memoryview | bytes]:
    """A field of that number, whose bytes are those of the parts."""
    yield _varint(number << 3 | LENGTH) + _varint(sum(map(len, parts)))
    yield from parts


def _varint(value: int) -> bytes:
    """A number as protobuf writes it, seven bits a byte, the lowest first."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
