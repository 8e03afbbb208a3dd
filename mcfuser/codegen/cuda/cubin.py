"""Triton source as a binary for a GPU's architecture; no GPU is needed.

Registers and spills are read from the binary with the tools that Triton brings along. Nothing is
left behind: Triton's cache and the source that it must read from a file share one folder that goes.
The file that ptxas reads is not in that folder, and stays where ptxas refuses it; compilers have a
folder for both that goes with them (`mcfuser.codegen.cuda.pool`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mcfuser.chain import BYTES
from mcfuser.codegen.cuda.descriptors import at_risk, misread
from mcfuser.codegen.cuda.kept import keeps_operands, lost
from mcfuser.codegen.cuda.rings import overwritten
from mcfuser.codegen.triton import Launch, TensorMap, TritonSource
from mcfuser.lowering.triton.hopper.tensor_map import SWIZZLES
from mcfuser.space.statement import Illegal

_TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
          "int32": "i32", "int64": "i64", "bool": "i1", "int8": "i8", "uint8": "u8",
          "int16": "i16"}  # fmt: skip
OLDEST = 75
_HEADER_ENDS = ".address_size 64"
_DECLARATION = re.compile(r"^\.extern .*$", re.MULTILINE)
_OWN = re.compile(r"_\$_\w+")
"""Names that a kernel's text defines besides its code: words that choose among libraries."""
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """What a compiling process is asked: a source, and an architecture such as `sm_90`. It answers
    with a Binary or an Illegal."""

    source: TritonSource
    arch: str


@dataclass(frozen=True, slots=True)
class Binary:
    """A source's kernels, compiled. `shared` is in bytes a block, `registers` a thread, `spills` in
    bytes a thread, each the most of any of them; a block has `threads` threads. `name` is the
    first kernel's. A kernel takes what its launch says, and then two null pointers."""

    cubin: bytes
    name: str
    shared: int
    registers: int
    spills: int
    threads: int


def compile_source(source: TritonSource, arch: str) -> Binary:
    """The source compiled for an architecture such as `sm_90`.

    Raises Illegal with the reason where Triton or ptxas refuse it. Not for use by several threads
    of a process at once; processes do not disturb each other. Should Triton's own code crash, it
    takes the process along; `mcfuser.codegen.cuda.pool.Compilers` survives that.
    """
    from triton.backends.compiler import GPUTarget

    if not re.fullmatch(r"sm_\d+", arch) or int(arch[3:]) < OLDEST:
        raise Illegal(f"architecture '{arch}' is not sm_{OLDEST} or a later one")
    target = GPUTarget("cuda", int(arch[3:]), 32)
    with _workshop() as folder, contextlib.redirect_stdout(io.StringIO()):
        try:
            module = _imported(source, folder)
            compiled = [_kernel(source, launch, module, target) for launch in source.launches]
            for kernel in compiled:
                _expect_faithful(kernel.asm, folder)
            cubin = _joined(source, compiled, target)
        except Illegal:
            raise
        except Exception as error:  # Triton raises what its passes happen to raise
            raise Illegal(f"Triton does not compile it: {_first_line(error)}") from error
        return _binary(source, compiled, cubin, folder)


def _options(source: TritonSource) -> dict[str, Any]:
    return {"num_warps": source.warps, "num_stages": source.stages, "enable_fp_fusion": True}


def _kernel(source: TritonSource, launch: Launch, module: ModuleType, target: Any) -> Any:
    """One kernel as Triton compiles it."""
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_kernel

    kernel = getattr(module, launch.name)
    pointers = [f"*{_TYPES[source.dtype_of[name]]}" for name in launch.arguments]
    maps = [
        f"tensordesc<{_TYPES[m.dtype]}{list(m.box)}{layout}>"
        for m, layout in _layouts(source, launch)
    ]
    types = [*pointers, *maps, *["i32"] * len(launch.extents)]
    signature = (_gluon_source() if source.gluon else ASTSource)(
        kernel,
        dict(zip(kernel.arg_names, types, strict=True)),
        attrs={(i,): [["tt.divisibility", 16]] for i in range(len(pointers))},
    )
    compiled = compile_kernel(signature, target=target, options=_options(source))
    _expect(launch.maps, compiled.metadata)
    if not source.gluon and overwritten(compiled.asm["ttgir"], source.stages):
        raise Illegal("Triton loads a tile over one that an unfinished product reads")
    return compiled


def _layouts(source: TritonSource, launch: Launch) -> Iterator[tuple[TensorMap, str]]:
    """Each tensor map, and for Gluon the layout of its tiles in shared memory."""
    if not source.gluon:
        yield from ((m, "") for m in launch.maps)
        return
    from triton.experimental.gluon.language import NVMMASharedLayout

    for m in launch.maps:
        yield m, f",{NVMMASharedLayout(m.swizzle, 8 * BYTES[m.dtype], len(m.box))!r}"


def _gluon_source() -> Any:
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def _expect(maps: Sequence[TensorMap], metadata: Any) -> None:
    """Whoever launches the kernel describes its maps as Triton has laid the tiles out."""
    found = getattr(metadata, "tensordesc_meta", None) or []
    for m, told in zip(maps, found, strict=True):
        if (SWIZZLES[told["swizzle"]], tuple(told["block_size"])) != (m.swizzle, m.part):
            raise Illegal(f"Triton lays the tile {m.box} of '{m.tensor}' out in a way of its own")


def _expect_faithful(asm: Mapping[str, Any], folder: Path) -> None:
    """The binary does what its text says, where ptxas is known to make others."""
    keeps, apart = keeps_operands(asm["ptx"]), at_risk(asm["ptx"])
    if not keeps and not apart:
        return
    told = _told("nvdisasm", ("-c",), asm["cubin"], folder)
    if told.returncode:
        raise Illegal("nvdisasm does not tell which registers the kernel writes")
    if keeps and lost(asm["ptx"], told.stdout):
        raise Illegal("ptxas writes over registers that a loop has to keep for its product")
    if apart and misread(told.stdout):
        raise Illegal("ptxas lets a product read a tile at an address that nothing has computed")


def _joined(source: TritonSource, compiled: Sequence[Any], target: Any) -> bytes:
    """One binary for all kernels: ptxas once more, on their text one after the other."""
    from triton.compiler import make_backend

    first, *rest = (kernel.asm["ptx"] for kernel in compiled)
    if not rest:
        cubin: bytes = compiled[0].asm["cubin"]
        return cubin
    declared = set(_DECLARATION.findall(first))
    for i, text in enumerate(rest, 2):
        body = _OWN.sub(rf"\g<0>_{i}", text.partition(_HEADER_ENDS)[2])
        for line in declared:
            body = body.replace(line, "")
        declared |= set(_DECLARATION.findall(body))
        first += body
    backend = make_backend(target)
    options = backend.parse_options(_options(source))
    joined: bytes = backend.make_cubin(first, {}, options, target.arch)
    return joined


def attempt(source: TritonSource, arch: str) -> Binary | Illegal:
    """The source compiled, or why not, as another process can hand it over."""
    try:
        return compile_source(source, arch)
    except Illegal as illegal:
        return Illegal(str(illegal))  # without its cause, which may not travel


def _binary(source: TritonSource, compiled: Sequence[Any], cubin: bytes, folder: Path) -> Binary:
    found = [kernel.metadata for kernel in compiled]
    if any(kernel.global_scratch_size or kernel.profile_scratch_size for kernel in found):
        raise Illegal("the kernel wants scratch memory, which nobody gives it")
    registers, stack = _usage(cubin, folder)
    shared = max(kernel.shared for kernel in found)
    if any(32 * kernel.num_warps != source.threads for kernel in found):
        raise Illegal(f"Triton gives a block other than {source.threads} threads")
    return Binary(cubin, source.name, shared, registers, stack, source.threads)


def _usage(cubin: bytes, folder: Path) -> tuple[int, int]:
    """The most registers and bytes of stack of a thread; a kernel has a stack only where it
    spills."""
    found = _USAGE.findall(_told("cuobjdump", ("-res-usage",), cubin, folder).stdout)
    if not found:
        raise Illegal("cuobjdump does not tell how many registers the kernel uses")
    return max(int(r) for r, _ in found), max(int(s) for _, s in found)


def _told(
    tool: str, options: Sequence[str], cubin: bytes, folder: Path
) -> subprocess.CompletedProcess[str]:
    """What a tool that Triton brings along tells of a binary."""
    from triton import knobs

    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    command = [getattr(knobs.nvidia, tool).path, *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


@contextlib.contextmanager
def _workshop() -> Iterator[Path]:
    """A folder for what Triton keeps, gone afterwards."""
    from triton import knobs

    with (
        tempfile.TemporaryDirectory(prefix="mcfuser-") as folder,
        knobs.cache.scope(),
        knobs.compilation.scope(),
    ):
        knobs.cache.dir = folder
        knobs.compilation.disable_line_info = True  # it would name the folder
        yield Path(folder)


def _imported(source: TritonSource, folder: Path) -> ModuleType:
    """The source as a module: Triton reads a kernel's text from the file that defines it."""
    path = folder / f"{source.name}.py"
    path.write_text(source.text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(source.name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
