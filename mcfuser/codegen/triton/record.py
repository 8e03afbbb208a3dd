"""How to launch a compiled kernel, kept as a document, for a chain with other names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from mcfuser.codegen.triton.source import Launch, TritonSource, Workspace
from mcfuser.lowering.triton.hopper.tensor_map import TensorMap


def to_record(source: TritonSource) -> dict[str, Any]:
    """Everything of a source but its text, as JSON: launches with their arguments, grids and
    tensor maps, workspaces, threads. Names are those of the source's chain."""
    document = dataclasses.asdict(source)
    del document["text"]
    found: dict[str, Any] = json.loads(json.dumps(document))
    return found


def from_record(
    record: Mapping[str, Any], text: str, tensors: Mapping[str, str], axes: Mapping[str, str]
) -> TritonSource:
    """The source for a chain in which tensors and axes have other names: a binary takes its
    arguments by position, and its text keeps the names that it was compiled with.

    Raises KeyError, TypeError or ValueError where the record is of another form.
    """
    names = dict(tensors)
    for w in record["workspace"]:
        names[w["name"]] = _fresh(str(w["name"]), {*names.values()})
    launches = tuple(_launch(one, names, axes) for one in record["launches"])
    if not launches:
        raise ValueError("the record of a kernel has no launch")
    return TritonSource(
        text,
        launches,
        tuple(names[p] for p in record["parameters"]),
        tuple(str(d) for d in record["dtypes"]),
        int(record["written"]),
        int(record["warps"]),
        int(record["stages"]),
        int(record["threads"]),
        tuple(
            Workspace(names[w["name"]], str(w["dtype"]), int(w["size"]), bool(w["zero"]))
            for w in record["workspace"]
        ),
        bool(record["dependent"]),
    )


def _launch(one: Mapping[str, Any], names: Mapping[str, str], axes: Mapping[str, str]) -> Launch:
    grid = ((axes[n] if isinstance(n, str) else int(n), int(tile)) for n, tile in one["grid"])
    return Launch(
        str(one["name"]),
        tuple(names[n] for n in one["arguments"]),
        tuple(axes[a] for a in one["extents"]),
        tuple(grid),
        int(one["parts"]),
        tuple(_map(m, names) for m in one["maps"]),
    )


def _map(m: Mapping[str, Any], names: Mapping[str, str]) -> TensorMap:
    return TensorMap(
        names[m["tensor"]], str(m["dtype"]), tuple(m["shape"]), tuple(m["strides"]),
        tuple(m["box"]), int(m["offset"]),
    )  # fmt: skip


def _fresh(name: str, taken: set[str]) -> str:
    """The name of a workspace, or one like it that no tensor of the chain has."""
    while name in taken:
        name += "_"
    return name
