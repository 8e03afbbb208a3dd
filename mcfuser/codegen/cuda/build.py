"""The build of a module for an NVIDIA GPU, in a process of its own (`mcfuser.process.command`).

It must load the CUDA runtime, and on a machine without a driver a stand-in for it, before TVM is
imported. `mcfuser.codegen.cuda.module.build` writes the folder and reads the result.
"""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcfuser.lowering.triton.instructions import waits
from mcfuser.process.linker import linker

MAP = "tensormap"
"""The type of an argument that is a tensor map, in addition to TVM's own types."""
TAGS = ("threadIdx.x", "blockIdx.x", "blockIdx.y", "blockIdx.z", "tirx.use_dyn_shared_memory")
"""Launch parameters in the order in which a call passes them; the last only if it is not zero."""
DEPENDENT = "tirx.use_programtic_dependent_launch"
"""The tag of functions that may start before those ahead of them end; TVM spells it so."""

# What TVM's CUDA runtime wants of the driver. Nothing is called while a module is built.
_DRIVER = (
    "cuDeviceGetName", "cuFuncSetAttribute", "cuGetErrorName", "cuGetErrorString",
    "cuLaunchKernelEx", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)  # fmt: skip
_NO_DEVICE = 100


def main() -> None:
    """Reads build.json and what it names from the folder that is the argument; writes module.so."""
    folder = Path(sys.argv[1])
    order = json.loads((folder / "build.json").read_text())
    toolkit = found_in(places())
    os.environ["CUDA_PATH"] = str(toolkit.root)
    os.environ["TVM_CUDA_NVRTC_EXTRA_OPTS"] = " ".join(f"-I{p}" for p in toolkit.includes)
    _load_driver(folder)
    ctypes.CDLL(str(toolkit.runtime), ctypes.RTLD_GLOBAL)

    import tvm

    from mcfuser.codegen import arguments
    from mcfuser.codegen.apart import export
    from mcfuser.codegen.cuda import dependent
    from mcfuser.codegen.cuda.rest import FUSED, pipeline

    if tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True) is None:
        raise RuntimeError("TVM's CUDA runtime does not load here, so it would embed source")
    module = _module(folder, order)
    target = tvm.target.Target(_target(order), host="llvm")
    lowering = (dependent if waits(order["arch"]) else arguments).register()
    _know_frames_of_imports()
    with target, tvm.transform.PassContext(config=FUSED):
        executable = tvm.compile(
            module, target=target, relax_pipeline=pipeline(target), tir_pipeline=lowering
        )
    export(executable, folder / "module.so", folder / "apart.c")


def _know_frames_of_imports() -> None:
    """Tells `inspect` which modules the frames of imports belong to.

    For each frame whose file it does not find it looks through all modules, and TVM asks for 15,000
    such frames when it loads what it knows of tensor cores, for the first product of 16 bits that
    is left to it: 24 s, with this 5 (a virtual machine, Python 3.11).
    """
    known = getattr(inspect, "modulesbyfile", {})
    known.update(
        {f"<frozen {m}>": m for m in ("importlib._bootstrap", "importlib._bootstrap_external")}
    )


@dataclass(frozen=True, slots=True)
class Toolkit:
    """NVIDIA's packages: the folder whose `include` has CUDA's headers, the other folders of
    headers, and CUDA's runtime library."""

    root: Path
    includes: tuple[Path, ...]
    runtime: Path


def found_in(places: Sequence[Path]) -> Toolkit:
    """The toolkit, whose packages may be installed in several places, in the order of the path.

    Raises FileNotFoundError naming what none of the places has, and its package.
    """
    root = _first(places, "include/cuda_runtime.h", "nvidia-cuda-runtime").parent.parent
    runtime = _first(places, "lib/libcudart.so*", "nvidia-cuda-runtime")
    _first(places, "include/crt/mma.h", "nvidia-cuda-crt")  # of TVM's half-precision products
    folders = (p / inner for inner in ("include/cccl", "include") for p in places)
    return Toolkit(root, tuple(f for f in folders if f.is_dir()), runtime)


def _first(places: Sequence[Path], pattern: str, package: str) -> Path:
    for place in places:
        for found in sorted(place.glob(pattern)):
            return found
    told = ", ".join(map(str, places)) or "no folder"
    raise FileNotFoundError(f"{told} has no {pattern}; install the package {package}")


def places() -> list[Path]:
    """The folders of the package nvidia.cu13: one for each entry of the path that has a part."""
    spec = importlib.util.find_spec("nvidia.cu13")
    return [Path(p) for p in (spec.submodule_search_locations or ())] if spec is not None else []


def _load_driver(folder: Path) -> None:
    """The driver, or a library that looks like one; every later library finds it by its name."""
    try:
        ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    except OSError:
        source, library = folder / "driver.c", folder / "libcuda.so.1"
        source.write_text("".join(f"int {f}(void) {{ return {_NO_DEVICE}; }}\n" for f in _DRIVER))
        flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c"]
        program = linker() or "cc"
        subprocess.run([program, *flags, "-o", str(library), str(source)], check=True)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def _target(order: Mapping[str, Any]) -> dict[str, Any]:
    """TVM's description of the GPU; `sm_90`, for dlight takes `sm_90a` for one without tensor
    cores."""
    return {
        "kind": "cuda",
        "arch": order["arch"],
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 48 * 1024,
        "thread_warp_size": 32,
        "registers_per_block": 65536,
    }


def _module(folder: Path, order: Mapping[str, Any]) -> Any:
    """The Relax module with its constants in place and its kernels attached."""
    import tvm
    from tvm import relax

    module = tvm.ir.load_json((folder / "module.json").read_text())
    constants = {n: _constant(folder, n, dtype) for n, dtype in order["constants"].items()}
    if constants:
        module = relax.transform.BindParams("main", constants)(module)
    if order["apart"]:
        module.update_func(module.get_global_var("main"), _asking(module["main"], order["apart"]))
        module = relax.transform.Normalize()(module)
    attached = _attached(folder, order["kernels"], order["arch"])
    return module.with_attr("external_mods", attached) if attached else module


def _asking(main: Any, numbers: Mapping[str, int]) -> Any:
    """`main` without the parameters that are kept apart, which it asks for first."""
    from tvm import relax

    from mcfuser.codegen.apart import FUNCTION
    from mcfuser.codegen.bindings import beginning_with

    own = [v for v in main.params if v.name not in numbers]
    asked = [
        relax.VarBinding(
            v,
            relax.call_pure_packed(
                FUNCTION, relax.prim_value(numbers[v.name]), own[0], ty_args=v.ty
            ),
        )
        for v in main.params
        if v.name in numbers
    ]
    return beginning_with(main, asked, own)


def _constant(folder: Path, name: str, dtype: str) -> Any:
    """A constant of the type `dtype`; numpy's files have none for bfloat16, and hold its bits."""
    import numpy as np
    import tvm

    tensor = tvm.runtime.tensor(np.load(folder / f"{name}.npy"))
    return tensor if str(tensor.dtype) == dtype else tensor._create_view(tensor.shape, dtype)


def _attached(folder: Path, kernels: Sequence[Mapping[str, Any]], arch: str) -> list[Any]:
    """Modules of TVM's runtime, each of which holds one cubin; those kernels whose file is a text
    in CUDA C have one for all of them."""
    from tvm.support.nvcc import compile_cuda

    from mcfuser.codegen.cuda.kernel import one_unit

    cubins = {k["name"]: folder / f"{k['name']}.cubin" for k in kernels}
    found = [k for k in kernels if cubins[k["name"]].exists()]
    made = [k for k in kernels if k not in found]
    attached = [_loaded(cubins[k["name"]].read_bytes(), [k]) for k in found]
    if made:
        unit = one_unit([cubins[k["name"]].with_suffix(".cu").read_text() for k in made])
        attached.append(_loaded(bytes(compile_cuda(unit, "cubin", arch)), made))
    return attached


def _loaded(cubin: bytes, kernels: Sequence[Mapping[str, Any]]) -> Any:
    """A module of TVM's runtime for the cubin of these kernels."""
    import tvm

    functions = {
        name: {"name": "", "launch_param_tags": _tags(k), **_arguments(types)}
        for k in kernels
        for name, types in k["functions"]
    }
    facts = json.dumps({"tvm_version": tvm.__version__, "func_info": functions})
    table = tvm.get_global_func("runtime.LoadMetaDataFromJSON")(facts)
    return tvm.get_global_func("ffi.Module.create.cuda")(cubin, "cubin", table, {})


def _tags(kernel: Mapping[str, Any]) -> list[str]:
    """The launch parameters of a kernel's functions."""
    tags = TAGS if kernel["shared"] else TAGS[:-1]
    return [*([DEPENDENT] if kernel["dependent"] else []), *tags]


def _arguments(types: Sequence[str]) -> dict[str, Any]:
    """The types of arguments as TVM knows them, and tags: a tensor map is a handle to its bytes,
    and is tagged to be passed by value."""
    tagged = [name == MAP for name in types]
    plain = ["handle" if tag else name for name, tag in zip(types, tagged, strict=True)]
    return {"arg_types": plain, "arg_extra_tags": [int(tag) for tag in tagged]}
