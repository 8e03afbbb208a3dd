"""A module launches kernels in CUDA C for operators that TVM's are slow or wrong for."""

from __future__ import annotations

import pytest
from tvm import IRModule, relax

from mcfuser.codegen.cuda.module import build
from mcfuser.codegen.cuda.operators import OPERATORS, only_on_host, with_operators
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import DeviceError
from tests.support.cuda_modules import MISSING
from tests.support.one_call import one_call

H200 = device_named("nvidia/h200")
gpu = pytest.mark.skipif(bool(MISSING), reason=f"the gpu extra is not installed: {MISSING}")


def module(k: int = 3, dtype: str = "float32") -> IRModule:
    """A module with two calls of each operator, of which two are equal."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 40), dtype))
    at = relax.Var("at", relax.TensorType((6, 1), "int64"))
    rows = relax.Var("rows", relax.TensorType((6, 40), "int64"))
    long = relax.Var("long", relax.TensorType((8, 4096), dtype))
    with builder.function("main", [x, at, rows, long]):
        with builder.dataflow():
            sums = builder.emit(relax.op.cumsum(x, axis=0))
            added = builder.emit(relax.op.scatter_nd(x, at, builder.emit(
                relax.op.strided_slice(sums, [0], [0], [6])), "add"))  # fmt: skip
            most = builder.emit(relax.op.topk(added, k, ret_type="both", dtype="int64"))
            again = builder.emit(relax.op.topk(sums, k, ret_type="both", dtype="int64"))
            changed = builder.emit(relax.op.scatter_elements(
                added, rows, builder.emit(relax.op.strided_slice(added, [0], [0], [6])),
                0, "max"))  # fmt: skip
            last = builder.emit(relax.op.cumsum(changed, axis=1))
            wide = [builder.emit(relax.op.concat([long, long], axis=1)) for _ in range(2)]
            results = [most[0], most[1], again[0], last, *wide]
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    return builder.get()


def names(of: IRModule) -> list[str]:
    """The operators that the module calls."""
    called = [b.value for b in of["main"].body.blocks[0].bindings]
    return [c.op.name for c in called if isinstance(c, relax.Call) and hasattr(c.op, "name")]


def test_every_call_becomes_a_launch_and_equal_ones_have_one_kernel() -> None:
    after, kernels = with_operators(module())
    assert not set(names(after)) & set(OPERATORS) and set(names(module())) >= set(OPERATORS)
    assert len(kernels) == 6, "two scans, two that scatter, one for the best, one that joins"
    text = str(after)
    for kernel in kernels:
        for function, types in kernel.functions:
            assert f'call_packed("{function}"' in text and f"{function}(" in kernel.text
            assert set(types) == {"handle"}
    assert [v.name_hint for v in after.functions if v.name_hint.startswith("top")]


def test_other_calls_stay_as_they_are() -> None:
    after, kernels = with_operators(module(41 - 1, "float64"))
    assert names(after).count("relax.topk") == 2, "a warp orders numbers of 32 bits"
    assert len(kernels) == 5
    again, none = with_operators(after)
    assert none == () and names(again) == names(after)


@pytest.mark.parametrize(("operator", "word"), [("nonzero", "NonZero"), ("unique", "Unique")])
def test_what_only_a_host_computes_is_refused(operator: str, word: str) -> None:
    call = getattr(relax.op, operator)
    module = one_call([relax.TensorType((4, 8), "float32")], lambda x: call(x))
    with pytest.raises(DeviceError, match=rf"'nvidia/h200' cannot run the model: its {word}"):
        build(module, H200, ())
    assert only_on_host(with_operators(module)[0]) is not None


@gpu
def test_kernels_are_built_without_a_gpu() -> None:
    _, kernels = with_operators(module(dtype="float16"))
    library = build(module(dtype="float16"), H200, ())
    for kernel in kernels:
        assert all(name.encode() in library for name, _ in kernel.functions)
