"""A tuned kernel as a function of a TVM module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcfuser.chain import Chain
from mcfuser.codegen.cpu import pack, parse_function
from mcfuser.codegen.tensorir import Lowering, Panels, generate
from mcfuser.device import Device
from mcfuser.tune import Tuned, realise


@dataclass(frozen=True)
class Function:
    """A PrimFunc that takes a chain's inputs and outputs, and what it needs beside it."""

    name: str
    primfunc: Any
    packed: tuple[tuple[int, Panels], ...]
    external: tuple[Any, ...] = ()


def function(
    tuned: Tuned, chain: Chain, device: Device, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> Function:
    """The kernel for parameters of these physical shapes, under this name."""
    source = generate(realise(tuned, chain), name, Lowering(**tuned.lowering), shapes)
    order = chain.inputs
    packed = tuple((order.index(n), panels) for n, panels in source.packed)
    return Function(name, parse_function(source.text), packed)


def packed(made: Function, chain: Chain, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The constants that the kernel wants in panels, packed."""
    names = {chain.inputs[i]: panels for i, panels in made.packed}
    return {n: pack(constants[n], panels) for n, panels in names.items()}
