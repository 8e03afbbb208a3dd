"""Constants behind a library: the same values, each stored once, and never another library's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi.libinfo
from numpy.typing import NDArray
from tvm import relax
from tvm.runtime.vm import VirtualMachine

from mcfuser.codegen.apart import FUNCTION, LARGE, MARK, ApartConstants, content
from mcfuser.codegen.llvm.module import build_library
from mcfuser.devices.cpu import probe_cpu

SHAPE = (300, 1000)  # of float32: more than LARGE


def constant(seed: int, dtype: object = np.float32, rows: int = 1) -> NDArray[np.generic]:
    random = np.random.default_rng(seed)
    return random.standard_normal((SHAPE[0] * rows, SHAPE[1])).astype(dtype)


def adding(*constants: NDArray[np.generic], give: bool = False) -> tvm.IRModule:
    """The sum of `x` and constants; with `give`, also the last constant itself."""
    builder, dtype = relax.BlockBuilder(), str(constants[0].dtype)
    x = relax.Var("x", relax.TensorType(constants[0].shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            value: relax.Expr = x
            for array in constants:
                value = builder.emit(relax.op.add(value, relax.const(array)))
            result = relax.Tuple([value, relax.const(constants[-1])]) if give else value
            out = builder.emit_output(result)
        builder.emit_func_output(out)
    return builder.get()


def built(path: Path, module: tvm.IRModule) -> Path:
    path.write_bytes(build_library(module, probe_cpu()))
    return path


def ran(path: Path, x: NDArray[np.generic]) -> NDArray[np.generic]:
    machine = VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    return np.asarray(machine["main"](tvm.runtime.tensor(x)).numpy())


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_values_are_what_they_were(dtype: type, tmp_path: Path) -> None:
    one, two = ((constant(seed, rows=4) * 9).astype(dtype) for seed in (1, 2))
    library = built(tmp_path / "m.so", adding(one, two))
    assert MARK in library.read_bytes()[-100:]
    np.testing.assert_allclose(
        ran(library, np.zeros_like(one)).astype("f4"), (one + two).astype("f4"), rtol=1e-3
    )


def test_bfloat16_is_given_as_it_is(tmp_path: Path) -> None:
    one = constant(1, ml_dtypes.bfloat16, 2)
    library = built(tmp_path / "m.so", adding(one))
    assert (ran(library, np.zeros_like(one)).view("u2") == one.view("u2")).all()


def test_each_is_stored_once_and_small_ones_stay_in_the_code(tmp_path: Path) -> None:
    one, small = constant(1), np.ones((1, SHAPE[1]), np.float32)
    size = built(tmp_path / "m.so", adding(one, one.copy(), one, one)).stat().st_size
    assert one.nbytes < size < 2 * one.nbytes
    library = built(tmp_path / "s.so", adding(small))
    assert small.nbytes < LARGE and MARK not in library.read_bytes()[-100:]
    assert (ran(library, np.zeros_like(small)) == 1).all()


def test_it_is_mapped_and_not_read(tmp_path: Path) -> None:
    """Loading a library with 80 MB of constants takes no memory for them."""
    many = [np.full((2000, 1000), i, np.float32) for i in range(10)]
    library = built(tmp_path / "m.so", adding(*many))
    code = (
        "import sys, tvm; from tvm.runtime.vm import VirtualMachine\n"
        "def anonymous():\n"
        "    return int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0])\n"
        "machine = VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())\n"
        "x = tvm.runtime.empty((2000, 1000), 'float32')\n"
        "before = anonymous()\n"
        "machine['main'](x)\n"
        "print(anonymous() - before)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(library)], capture_output=True, text=True, check=True
    )
    assert int(told.stdout) < 40 << 10  # kB: the values between, and x


def test_a_result_is_a_copy_that_may_be_written_to(tmp_path: Path) -> None:
    one = constant(1)
    library = built(tmp_path / "m.so", adding(one, give=True))
    machine = VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    _, given = machine["main"](tvm.runtime.tensor(np.zeros_like(one)))
    given.copyfrom(np.zeros_like(one))
    total, _ = machine["main"](tvm.runtime.tensor(np.zeros_like(one)))
    np.testing.assert_array_equal(total.numpy(), one)


def test_threads_are_given_the_same(tmp_path: Path) -> None:
    arrays = [constant(seed) for seed in range(4)]
    library = built(tmp_path / "m.so", adding(*arrays))
    loaded = tvm.runtime.load_module(str(library))
    x, expected = tvm.runtime.tensor(np.zeros(SHAPE, np.float32)), sum(arrays)

    def one(_: int) -> NDArray[np.generic]:
        return np.asarray(VirtualMachine(loaded, tvm.cpu())["main"](x).numpy())

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(one, range(32)):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


TELLING = """
#include <stdio.h>
#include <tvm/ffi/c_api.h>
static int told(TVMFFIObjectHandle object) {
  fputs("released\\n", stderr);
  return TVMFFIObjectDecRef(object);
}
#define TVMFFIObjectDecRef told
"""
"""C in front of a library's own, which tells of every object that it gives up."""


def copying(folder: Path, *arrays: NDArray[np.generic], before: str = "") -> Path:
    """A library that gives `x`, which is on a device, and constants that are copied there."""
    apart, builder = ApartConstants(), relax.BlockBuilder()
    flat = [a.reshape(-1).view("u1") for a in arrays]
    numbers = [
        apart.number(content(octets, a.shape, str(a.dtype)), octets)
        for a, octets in zip(arrays, flat, strict=True)
    ]
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        asked = [
            builder.emit(relax.call_pure_packed(FUNCTION, relax.prim_value(n), x, ty_args=x.ty))
            for n in numbers
        ]
        builder.emit_func_output(relax.Tuple([x, *asked]))
    source, library = folder / "apart.c", folder / "m.so"
    source.write_text(before + apart.source(copied=True))
    options = ["-O2", f"-I{tvm_ffi.libinfo.find_include_path()}"]
    executable = tvm.compile(builder.get(), target="llvm")
    executable.export_library(str(library), addons=[str(source)], options=options)
    apart.append(library)
    return library


def test_a_device_has_one_copy_of_each(tmp_path: Path) -> None:
    """The device is the host here: what is copied there is no view of the file."""
    arrays = [constant(seed) for seed in (1, 2, 1)]
    machine = VirtualMachine(tvm.runtime.load_module(str(copying(tmp_path, *arrays))), tvm.cpu())
    x = tvm.runtime.tensor(np.zeros(SHAPE, np.float32))
    _, one, other, again = machine["main"](x)
    for array, given in zip(arrays, (one, other, again), strict=True):
        np.testing.assert_array_equal(given.numpy(), array)
    one.copyfrom(np.zeros(SHAPE, np.float32))
    for given in (again, machine["main"](x)[1]):
        assert not given.numpy().any(), "the same memory"


def test_it_is_unloaded_with_its_copies(tmp_path: Path) -> None:
    """A process that loads and unloads ten libraries of 24 MB each keeps no copy of them."""
    library = copying(tmp_path, *(constant(seed) for seed in range(20)))
    many = [shutil.copy(library, tmp_path / f"{i}.so") for i in range(10)]
    code = (
        "import gc, sys, tvm, tvm_ffi; from tvm.runtime.vm import VirtualMachine\n"
        "def anonymous():\n"
        "    return int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0])\n"
        f"x = tvm.runtime.empty({SHAPE}, 'float32')\n"
        "def once(path):\n"
        "    library = tvm_ffi.load_module(path, keep_module_alive=False)\n"
        "    VirtualMachine(library, tvm.cpu())['main'](x)\n"
        "    del library\n"
        "    gc.collect()\n"
        "once(sys.argv[1]); before = anonymous()\n"
        "for path in sys.argv[2:]: once(path)\n"
        "print(anonymous() - before)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, *map(str, many)], capture_output=True, text=True, check=True
    )
    assert int(told.stdout) < 100 << 10  # kB


@pytest.mark.parametrize("end", ["", "; del library, machine", "; sys.exit(0)"])
def test_copies_are_left_alone_as_a_process_ends(end: str, tmp_path: Path) -> None:
    """Its driver may be gone by then, and TVM ends a process that frees memory without one."""
    library = copying(tmp_path, constant(1), constant(2), before=TELLING)
    code = (
        "import sys, tvm, tvm_ffi; from tvm.runtime.vm import VirtualMachine\n"
        "library = tvm_ffi.load_module(sys.argv[1], keep_module_alive=not sys.argv[2])\n"
        "machine = VirtualMachine(library, tvm.cpu())\n"
        f"machine['main'](tvm.runtime.empty({SHAPE}, 'float32')){end}"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(library), "unloaded" if "del" in end else ""],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    as_they_are_copied = 2 * 2  # the view of the file, and the function that copies
    assert told.stderr.count("released") == as_they_are_copied + (2 if "del" in end else 0)


@pytest.mark.parametrize("spoil", ["cut", "another's", "longer"])
def test_what_is_not_its_own_is_refused(spoil: str, tmp_path: Path) -> None:
    library = built(tmp_path / "m.so", adding(constant(1)))
    data = library.read_bytes()
    if spoil == "cut":
        data = data[: len(data) // 2]
    elif spoil == "another's":
        other = built(tmp_path / "other.so", adding(constant(2))).read_bytes()
        data = data[:-100] + other[-100:]
    else:
        data += b"\n"
    spoilt = tmp_path / "spoilt.so"
    spoilt.write_bytes(data)
    with pytest.raises(RuntimeError, match="behind the library's code are missing"):
        ran(spoilt, np.zeros(SHAPE, np.float32))


def test_a_file_put_in_its_place_does_not_change_a_loaded_one(tmp_path: Path) -> None:
    library = built(tmp_path / "m.so", adding(constant(1)))
    machine = VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    built(tmp_path / "new.so", adding(constant(2))).replace(library)
    x = np.zeros(SHAPE, np.float32)
    found = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(found, constant(1))
