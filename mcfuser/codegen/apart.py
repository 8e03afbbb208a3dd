"""Large constants of a module apart from its code: behind the library, in the same file.

TVM would copy them several times and have a linker place them, which fails for more than 2 GB, and
would copy them once more whenever the library is loaded. Here they are appended to the linked
library, and a function in it (apart.c) gives them: as tensors over the mapped file, or, to a module
for a GPU, as tensors in the GPU's memory, where each is copied once.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi.libinfo
from numpy.typing import NDArray
from tvm import relax

from mcfuser.codegen.bindings import beginning_with

LARGE = 1 << 20
"""Constants of more bytes are kept apart: a kernel that reads so much takes far longer than the
call that gives it the constant."""
FUNCTION = "mcfuser_constant"
"""The library's function that gives a constant, by its number; in a module for a GPU it takes a
tensor besides, which is on the GPU."""
MARK = b"mcfuser apart 1\n"
"""The first bytes of a file's end, which says where the constants begin."""
_PAGE = 1 << 16  # a multiple of every system's page
_ALIGNMENT = 64  # bytes
_TEXT = Path(__file__).with_name("apart.c")


Content = tuple[bytes, tuple[int, ...], str]
"""A hash of a constant's bytes, its extents, and the type of its elements."""


def content(octets: NDArray[np.uint8], shape: tuple[int, ...], dtype: str) -> Content:
    """What a constant is: the same for equal ones."""
    return hashlib.blake2b(octets.data).digest(), shape, dtype


@dataclass(frozen=True, slots=True)
class ApartConstant:
    """A constant: its bytes, where they begin behind the library, and its type."""

    octets: NDArray[np.uint8]
    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass
class ApartConstants:
    """The constants behind a library, each once, and a hash of all their bytes."""

    constants: list[ApartConstant] = field(default_factory=list)
    size: int = 0
    known: dict[Content, int] = field(default_factory=dict)

    def number(self, content: Content, octets: NDArray[np.uint8]) -> int:
        """The number of a constant of these bytes; equal ones have the same."""
        if content not in self.known:
            _, shape, dtype = content
            self.known[content] = len(self.constants)
            self.constants.append(ApartConstant(octets, self.size, shape, dtype))
            self.size += -(-octets.nbytes // _ALIGNMENT) * _ALIGNMENT
        return self.known[content]

    @property
    def digest(self) -> bytes:
        """By this a library knows that what is behind it is its own."""
        return hashlib.blake2b(repr(list(self.known)).encode(), digest_size=16).digest()

    def source(self, copied: bool = False) -> str:
        """The C source of FUNCTION, which gives copies on a device if `copied`."""
        shapes, rows = [], []
        for i, c in enumerate(self.constants):
            dtype = tvm_ffi.dtype(c.dtype)
            kind = f"{dtype.type_code}, {dtype.bits}, {dtype.lanes}"
            shapes += [f"shape_{i}[] = {{{_numbers(c.shape)}}}"]
            shapes += [f"strides_{i}[] = {{{_numbers(_strides(c.shape))}}}"]
            rows += [f"{{{c.offset}ull, {len(c.shape)}, {{{kind}}}, shape_{i}, strides_{i}}}"]
        return "\n".join(
            [
                f"#define FUNCTION __tvm_ffi_{FUNCTION}",
                f"#define COPIED {int(copied)}",
                f"#define COUNT {len(rows)}",
                f"#define SIZE {self.size}ull",
                f"#define END {{{_numbers(MARK + self.digest)}}}",
                f"#define SHAPES static int64_t {', '.join(shapes)};",
                f"#define CONSTANTS {', '.join(rows)}",
                _TEXT.read_text(),
            ]
        )

    def append(self, library: Path) -> None:
        """Writes the constants behind a linked library."""
        with library.open("r+b") as file:
            start = -(-file.seek(0, os.SEEK_END) // _PAGE) * _PAGE
            for constant in self.constants:
                file.seek(start + constant.offset)
                file.write(constant.octets.data)
            file.seek(start + self.size)
            file.write(MARK + self.digest + struct.pack("<Q", start))


def export(executable: Any, library: Path, source: Path) -> None:
    """Writes an executable as a library, with FUNCTION if the file of its C source is there."""
    more: dict[str, Any] = {}
    if source.exists():
        include = f"-I{tvm_ffi.libinfo.find_include_path()}"
        more = {"addons": [str(source)], "options": ["-O2", "-fvisibility=hidden", include]}
    executable.export_library(str(library), **more)


def set_apart(module: tvm.IRModule) -> tuple[tvm.IRModule, ApartConstants]:
    """The module whose functions ask FUNCTION for their large constants, and these.

    Constants that `main` returns stay in it: who calls it may write to its results.
    """
    apart = ApartConstants()
    light = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            light.update_func(light.get_global_var(variable.name_hint), _asking(function, apart))
    return (light if apart.constants else module), apart


def _asking(function: relax.Function, apart: ApartConstants) -> relax.Function:
    """The function, which begins by asking for its large constants."""
    mutator = _Apart(apart)
    after = mutator.visit_expr(function)
    if not mutator.bindings:
        return function
    return beginning_with(after, mutator.bindings, function.params)


@relax.expr_functor.mutator
class _Apart(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces the large constants that functions are called with by variables."""

    def __init__(self, apart: ApartConstants) -> None:
        super().__init__()
        self.apart = apart
        self.bindings: list[relax.Binding] = []
        self.variables: dict[int, relax.Var] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if call.op != tvm.ir.Op.get("relax.call_tir"):
            return call
        function, arguments, *more = call.args
        replaced = relax.Tuple([self._variable(a) for a in arguments.fields])
        return relax.Call(call.op, [function, replaced, *more], call.attrs, call.ty_args, call.span)

    def _variable(self, argument: relax.Expr) -> relax.Expr:
        if not isinstance(argument, tvm.ir.GenericConst) or _bytes(argument.value) <= LARGE:
            return argument
        tensor, octets = argument.value, _octets(argument.value)
        shape = tuple(int(n) for n in tensor.shape)
        number = self.apart.number(content(octets, shape, str(tensor.dtype)), octets)
        if number not in self.variables:
            asked = relax.call_pure_packed(FUNCTION, relax.prim_value(number), ty_args=argument.ty)
            self.variables[number] = relax.Var(f"constant_{number}", argument.ty)
            self.bindings.append(relax.VarBinding(self.variables[number], asked))
        return self.variables[number]


def _octets(tensor: Any) -> NDArray[np.uint8]:
    """The bytes of a tensor on the host, not copied."""
    flat = tensor._create_view((_bytes(tensor),), "uint8")
    return np.asarray(np.from_dlpack(flat).view(np.uint8))


def _bytes(tensor: Any) -> int:
    bits: int = tvm_ffi.dtype(str(tensor.dtype)).bits
    return int(tensor.numel()) * max(bits, 8) // 8


def _strides(shape: tuple[int, ...]) -> list[int]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return strides[::-1]


def _numbers(values: Any) -> str:
    return ", ".join(map(str, values))
