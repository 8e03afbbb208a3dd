"""Modules for a GPU hold cubins, and are built where there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from tvm import relax

from mcfuser.chain import attention
from mcfuser.codegen.apart import MARK
from mcfuser.codegen.cuda import build
from mcfuser.codegen.cuda import module as cuda_module
from mcfuser.codegen.cuda.build import DEPENDENT
from mcfuser.codegen.cuda.cubin import Binary, compile_source
from mcfuser.codegen.triton import TritonSource, generate
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import DeviceError
from mcfuser.graph.tensors import tensor_over
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.statement import Illegal
from tests.support.cuda_modules import (
    MISSING,
    PHYSICAL,
    compiled,
    module_with,
    split,
    split_by,
    tvm,
)
from tests.support.triton_cases import run_time, scheduled

__all__ = ["compiled", "split"]  # fixtures

gpu = pytest.mark.skipif(bool(MISSING), reason=f"the gpu extra is not installed: {MISSING}")


@pytest.fixture(scope="module")
def mapped() -> tuple[TritonSource, Binary]:
    tiles = {"m": 32, "n": 32, "k": 32, "h": 32}
    chain = attention(2, 64, 64, 32, 32, "float16")
    tensors = [replace(t, offset=32, strides=(2048, 32, 1)) if t.name == "K" else t
               for t in chain.tensors]  # fmt: skip
    schedule = scheduled(replace(chain, tensors=tuple(tensors)), "mh.nk", tiles)
    source = generate(schedule, "mapped_attention", TritonKnobs(tma=True))
    return source, compile_source(source, "sm_90")


@pytest.fixture(scope="module")
def four(
    compiled: tuple[TritonSource, Binary], mapped: tuple[TritonSource, Binary]
) -> list[tuple[TritonSource, Binary]]:
    """A kernel, two that are split, and one with tensor maps."""
    return [compiled, split_by("kernel"), split_by("last"), mapped]


@pytest.fixture(scope="module")
def library(four: list[tuple[TritonSource, Binary]]) -> bytes:
    """A module for an H200 with all four, none of which waits for those ahead of it."""
    kernels = [cuda_module.kernel(*one) for one in four]
    first, *more = four
    return cuda_module.build(module_with(*first, *more), device_named("nvidia/h200"), kernels)


@gpu
def test_the_library_holds_the_cubin_and_no_source(
    compiled: tuple[TritonSource, Binary], library: bytes
) -> None:
    _, binary = compiled
    assert library.startswith(b"\x7fELF")
    assert binary.cubin in library
    assert library.count(b"\x7fELF") >= 6, "the library, four kernels, and what TVM compiled"
    assert b"fused_attention_0" in library
    assert b"__global__" not in library, "TVM fell back to embedding CUDA source"


@pytest.mark.thorough
@gpu
def test_only_kernels_that_wait_may_start_before_those_ahead_of_them_end(
    four: list[tuple[TritonSource, Binary]], library: bytes
) -> None:
    tag, (first, *more) = DEPENDENT.encode(), four
    older = cuda_module.build(
        module_with(*first), device_named("a100"), [cuda_module.kernel(*first)]
    )
    kernels = [cuda_module.kernel(replace(s, dependent=True), binary) for s, binary in four]
    waiting = cuda_module.build(module_with(*first, *more), device_named("h200"), kernels)
    assert older.count(tag) == 0
    assert library.count(tag) > 0, "what TVM computes is tagged as well, where GPUs can wait"
    assert waiting.count(tag) == library.count(tag) + sum(len(k.functions) for k in kernels)


@gpu
def test_a_split_runs_in_a_module_that_passes_it_a_workspace(
    split: tuple[TritonSource, Binary], library: bytes
) -> None:
    source, binary = split
    assert library.count(binary.cubin) == 1, "one cubin for both kernels"
    assert b"TVMBackendAllocWorkspace" not in library, "it belongs to the thread, not to the run"
    for launch in source.launches:
        assert launch.name.encode() in library


def test_a_split_launches_its_kernels_in_order(split: tuple[TritonSource, Binary]) -> None:
    source, binary = split
    words = cuda_module.launcher(source, binary, PHYSICAL).script()
    calls = [line for line in words.splitlines() if "call_packed" in line]
    for launch, call in zip(source.launches, calls, strict=True):
        x, y, z = launch.blocks({})
        assert f'"{launch.name}"' in call
        assert f"128, {x}, {y}, {z}, {binary.shared})" in call
        assert call.count(".data") == len(launch.arguments)
    parameters = words[words.index("def ") : words.index(":\n")].count("T.Buffer")
    counters = [w for w in source.workspace if w.zero]
    assert parameters == len(source.parameters) + len(counters)
    assert words.count("alloc_buffer") == len(source.workspace) - len(counters)


def test_a_number_without_dimensions_is_a_parameter(split: tuple[TritonSource, Binary]) -> None:
    source, binary = split
    first = source.parameters[0]
    words = cuda_module.launcher(source, binary, {**PHYSICAL, first: ()}).script()
    assert "T.reads(p0[()], " in words


ENCODE = "runtime.cuTensorMapEncodeTiled"


@pytest.mark.skipif(
    tvm.get_global_func(ENCODE, allow_missing=True) is not None, reason="TVM's CUDA runtime is here"
)
def test_a_launcher_hands_tensor_maps_over(mapped: tuple[TritonSource, Binary]) -> None:
    """Run on this CPU, with stand-ins for the driver's function and the kernel."""
    source, binary = mapped
    shapes = {n: (2, 65, 32) if n == "K" else shape for n, shape in PHYSICAL.items()}
    function = cuda_module.launcher(source, binary, shapes).with_attr("global_symbol", "launch")
    built = tvm.compile(tvm.IRModule({"launch": function}), target={"kind": "llvm"})
    q, k, v, o = (tvm.runtime.tensor(np.zeros(shapes[n], np.float16)) for n in source.parameters)
    maps: list[tuple[object, ...]] = []
    calls: list[tuple[object, ...]] = []
    tvm.register_global_func(ENCODE, lambda *given: maps.append(given))
    tvm.register_global_func(source.name, lambda *given: calls.append(given))
    try:
        built["launch"](q, k, v, o)
    finally:
        for name in (ENCODE, source.name):
            tvm_ffi.registry.remove_global_func(name)
    bases = [q.data_ptr(), k.data_ptr() + 2 * 32, v.data_ptr()]
    numbers = (32, 64, 2, 64, 4096, 32, 32, 1, 1, 1, 1)  # extents, bytes, box, steps
    codes = (0, 2, 2, 0)  # no interleaving, 64 bytes swizzled, lines of 128 bytes, zeros outside
    for given, base in zip(maps, bases, strict=True):
        assert given[0].value % 64 == 0, "the driver wants a map to lie so"
        assert given[3].value == base
        assert given[1:3] + given[4:] == ("float16", 3, *numbers, *codes)
    each = [(m[0].value, 2, 64, 32, 2048, 32, 1) for m in maps]
    rest = (0, 0, binary.threads, *source.grid, binary.shared)
    taken = [getattr(x, "value", x) for x in calls[0]]
    assert taken == [o.data_ptr(), *(x for one in each for x in one), *rest]


@gpu
def test_a_module_is_built_with_tensor_maps(
    mapped: tuple[TritonSource, Binary], library: bytes
) -> None:
    source, binary = mapped
    kernel = cuda_module.kernel(source, binary)
    ((_, types),) = kernel.functions
    assert types == (
        "handle",
        *(cuda_module.MAP, *["int32"] * 3, *["int64"] * 3) * 3,
        *["int64"] * 2,
    )
    assert binary.cubin in library
    assert ENCODE.encode() in library


def test_extents_known_at_run_time_only_are_refused(compiled: tuple[TritonSource, Binary]) -> None:
    chain = run_time(attention(2, 64, 64, 32, 32, "float16"), "n")
    source = generate(scheduled(chain, "mh.nk", dict.fromkeys("mnkh", 32)), "f")
    with pytest.raises(Illegal, match="axis 'n' has an extent that is known at run time only"):
        cuda_module.launcher(source, compiled[1], PHYSICAL)


@gpu
def test_what_the_compiler_refuses_is_one_sentence(compiled: tuple[TritonSource, Binary]) -> None:
    source, binary = compiled
    device = replace(device_named("nvidia/h200"), arch="sm_12")
    with pytest.raises(DeviceError, match=r"device 'nvidia/h200' cannot be built: .+") as caught:
        cuda_module.build(module_with(source, binary), device, [cuda_module.kernel(source, binary)])
    assert "\n" not in str(caught.value)


def test_two_kernels_of_one_name_are_refused(compiled: tuple[TritonSource, Binary]) -> None:
    one = cuda_module.kernel(*compiled)
    with pytest.raises(ValueError, match="two kernels of one name"):
        cuda_module.build(
            module_with(*compiled), device_named("h200"), [one, replace(one, cubin=b"")]
        )


def test_missing_packages_are_named(
    compiled: tuple[TritonSource, Binary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_module, "NEEDED", ("no_such.package",))
    with pytest.raises(DeviceError, match=r"package no_such\.package is not .*mcfuser\[gpu\]"):
        cuda_module.build(module_with(*compiled), device_named("nvidia/h200"), [])


@pytest.mark.skipif(bool(MISSING), reason=f"package {' '.join(MISSING)} is not installed")
def test_a_missing_header_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cuda_module.lacking() is None
    for name in ("include/cuda_runtime.h", "lib/libcudart.so.13"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(cuda_module, "places", lambda: [tmp_path])
    assert cuda_module.lacking() == (
        f"{tmp_path} has no include/crt/mma.h; install the package nvidia-cuda-crt"
    )


def test_large_constants_travel_apart_and_come_back(compiled: tuple[TritonSource, Binary]) -> None:
    module = module_with(*compiled)
    light, constants = cuda_module.lift_constants(module)
    assert [c.array.shape for c in constants.values()] == [(2, 256, 128)]
    assert len(light["main"].params) == 4
    assert len(tvm.ir.save_json(light)) < len(tvm.ir.save_json(module)) / 2
    bound = relax.transform.BindParams(
        "main", {n: tvm.runtime.tensor(c.array) for n, c in constants.items()}
    )(light)
    tvm.ir.assert_structural_equal(bound["main"], module["main"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int64", "bool"])
def test_large_constants_of_every_type_are_read_back_from_files(dtype: str, tmp_path: Path) -> None:
    values = (np.arange(1 << 17) % 251).reshape(2, -1).astype(getattr(ml_dtypes, dtype, dtype))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(values.shape, dtype))
    with builder.function("main", [x]):
        builder.emit_func_output(relax.op.equal(x, relax.const(tensor_over(values))))
    module = builder.get()
    cuda_module._write(tmp_path, module, device_named("h200"), [])
    read = build._module(tmp_path, json.loads((tmp_path / "build.json").read_text()))
    tvm.ir.assert_structural_equal(read["main"], module["main"])


def weighted(rows: int, inputs: bool = True) -> tvm.IRModule:
    """A sum of an input and two constants of so many rows of 4 kB, of which `main` returns one."""
    one, two = (relax.const(np.full((rows, 1024), v, np.float32)) for v in (1, 2))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 1024), "float32"))
    with builder.function("main", [x] if inputs else []):
        added = builder.emit(relax.op.add(x if inputs else two, one))
        builder.emit_func_output(relax.Tuple([builder.emit(relax.op.add(added, two)), two]))
    return builder.get()


@pytest.mark.parametrize(
    ("rows", "least", "inputs", "apart"),
    [(300, 2 << 20, True, 1), (300, 3 << 20, True, 0), (300, 2 << 20, False, 0),
     (256, 1 << 20, True, 0)],
)  # fmt: skip
def test_constants_of_large_modules_are_behind_them(
    rows: int, least: int, inputs: bool, apart: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """But for those that are returned, of a module that takes nothing, and of 1 MB or less."""
    monkeypatch.setattr(cuda_module, "APART", least)
    behind = cuda_module._write(tmp_path, weighted(rows, inputs), device_named("h200"), [])
    order = json.loads((tmp_path / "build.json").read_text())
    assert len(behind.constants) == len(order["apart"]) == apart
    assert len(order["constants"]) == 2 - apart
    assert (tmp_path / "apart.c").exists() is bool(apart)
    read = build._module(tmp_path, order)
    assert len(read["main"].params) == int(inputs)
    assert str(read).count("mcfuser_constant") == apart
    relax.analysis.well_formed(read)


@gpu
def test_a_library_has_its_large_constants_at_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = device_named("nvidia/h200")
    (tmp_path / "one.so").write_bytes(cuda_module.build(weighted(600), device, []))
    monkeypatch.setattr(cuda_module, "APART", 1 << 20)
    (tmp_path / "two.so").write_bytes(cuda_module.build(weighted(600), device, []))
    one, two = ((tmp_path / name).read_bytes() for name in ("one.so", "two.so"))
    assert MARK in two[-100:] and MARK not in one[-100:]
    row = np.full(1024, 1, np.float32).tobytes()
    assert one.count(row) == two.count(row) == 600
    assert row in two[-(2600 << 10) :] and row not in two[: 1 << 20]


def test_functions_take_their_large_constants_from_main() -> None:
    """Two functions with one weight: it is one parameter of `main`, which hands it on."""
    weight = relax.const(np.arange(1 << 15, dtype=np.float32))
    builder, callees = relax.BlockBuilder(), []
    for name, operator in (("one", relax.op.add), ("two", relax.op.multiply)):
        x = relax.Var("x", relax.TensorType((1 << 15,), "float32"))
        with builder.function(name, [x], private=True):
            builder.emit_func_output(builder.emit(operator(x, weight)))
        callees.append(builder.get().get_global_var(name))
    x = relax.Var("x", relax.TensorType((1 << 15,), "float32"))
    with builder.function("main", [x]):
        first = builder.emit(relax.Call(callees[0], [x]))
        builder.emit_func_output(builder.emit(relax.Call(callees[1], [first])))
    light, constants = cuda_module.lift_constants(relax.transform.Normalize()(builder.finalize()))
    assert [c.array.shape for c in constants.values()] == [(1 << 15,)]
    assert [len(light[name].params) for name in ("one", "two", "main")] == [2, 2, 2]
    relax.analysis.well_formed(light)
    assert len(tvm.ir.save_json(light)) < weight.value.numpy().nbytes


def test_the_launcher_takes_physical_shapes(compiled: tuple[TritonSource, Binary]) -> None:
    source, binary = compiled
    function = cuda_module.launcher(source, binary, PHYSICAL)
    words = function.script()
    for i, name in enumerate(source.parameters):
        assert f'p{i}: T.Buffer({PHYSICAL[name]}, "float16")' in words
    launch = f"128, {source.grid[0]}, 1, 1, {binary.shared}"
    assert f"T.int64(0), T.int64(0), {launch})" in words
    without = cuda_module.launcher(source, replace(binary, shared=0), PHYSICAL)
    assert f"128, {source.grid[0]}, 1, 1)" in without.script()


def test_arrays_may_begin_later_in_their_parameters(
    compiled: tuple[TritonSource, Binary], mapped: tuple[TritonSource, Binary]
) -> None:
    """By bytes of their addresses, which a tensor map gets as well as a kernel."""
    source, binary = compiled
    one, *_ = source.parameters
    words = cuda_module.launcher_text(source, binary, PHYSICAL, {one: 192})
    assert words.count("T.handle_add_byte_offset(p0.data, 384)") == 1 and "p0.data," in words
    function = cuda_module.launcher(*mapped, PHYSICAL, {"K": 64})
    place = f"p{mapped[0].parameters.index('K')}"
    own = next(m for launch in mapped[0].launches for m in launch.maps if m.tensor == "K").start
    assert own == 64
    inner = f"T.handle_add_byte_offset({place}.data, 128)"
    words = cuda_module.launcher_text(*mapped, PHYSICAL, {"K": 64})
    assert f"T.handle_add_byte_offset({inner}, {own})" in words
    assert len(function.params) == len(mapped[0].parameters)
