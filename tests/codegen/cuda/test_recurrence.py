"""A module launches a kernel for each recurrence, which is built without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule

from mcfuser.chain.recurrence import is_recurrence
from mcfuser.codegen.cuda.cluster import THREADS, recurrence_limits
from mcfuser.codegen.cuda.module import build
from mcfuser.codegen.cuda.recurrence import with_kernels
from mcfuser.device import Device
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import DeviceError
from mcfuser.graph.load import load
from tests.support.cuda_modules import MISSING
from tests.support.recurrences import called_by_name
from tests.support.recurrent_nodes import EVERY, GATES, arrays, recurrent_model

H200, A100 = device_named("nvidia/h200"), device_named("nvidia/a100")
gpu = pytest.mark.skipif(bool(MISSING), reason=f"the gpu extra is not installed: {MISSING}")


def module(
    kind: str, dtype: str = "float32", hidden: int = 20, lengths: bool = False,
    narrow: str | None = None,
) -> IRModule:  # fmt: skip
    """A module of one node."""
    given, weights = arrays(kind, 2, batch=3, hidden=hidden)
    given, weights = ({n: a.astype(dtype) for n, a in part.items()} for part in (given, weights))
    slots = EVERY[kind]
    if lengths:
        slots, given = f"{slots} lengths", given | {"lengths": np.array([2, 5, 1], np.int32)}
    model, _ = recurrent_model(kind, slots, given, weights, direction="bidirectional")
    limits = recurrence_limits(H200)
    return load(model.SerializeToString(), {}, narrow=narrow, recurrences=limits).module


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_call_becomes_a_launch(kind: str, dtype: str) -> None:
    before = module(kind, dtype, lengths=kind == "GRU")
    assert list(map(is_recurrence, called_by_name(before))) == [True]
    after, (kernel,) = with_kernels(before, H200)
    assert called_by_name(after) == []
    launches = [f for v, f in after.functions.items() if v.name_hint.startswith("recurrence")]
    text = "".join(str(launches[0]).split())
    assert len(launches) == 1 and f'call_packed("{kernel.name}"' in text
    assert f"{THREADS},1,3,2,{kernel.shared})" in text
    assert kernel.name in kernel.text and len(kernel.functions[0][1]) == len(launches[0].params)


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_matrices_are_narrow_where_products_are(narrow: str) -> None:
    _, (kernel,) = with_kernels(module("GRU", narrow=narrow), H200)
    number = {"float16": "__half", "bfloat16": "__nv_bfloat16"}[narrow]
    assert "const float* __restrict__ given" in kernel.text
    assert f"{number}* vector_h" in kernel.text and "mma.sync" in kernel.text
    assert kernel != with_kernels(module("GRU"), H200)[1][0]


def test_equal_recurrences_have_one_kernel() -> None:
    one, other = (with_kernels(module("GRU"), device)[1] for device in (H200, H200))
    assert one == other
    assert with_kernels(module("GRU", hidden=24), H200)[1] != one
    assert with_kernels(module("GRU", "float16"), H200)[1] != one


def test_a_module_without_recurrences_stays_as_it_is() -> None:
    after, kernels = with_kernels(module("RNN"), H200)
    assert kernels
    again, none = with_kernels(after, H200)
    assert none == ()
    assert called_by_name(again) == called_by_name(after)


@gpu
@pytest.mark.parametrize(
    ("device", "kind", "dtype", "hidden", "narrow"),
    [
        (H200, "GRU", "float16", 160, None),
        pytest.param(A100, "RNN", "float32", 20, None, marks=pytest.mark.thorough),
        pytest.param(A100, "LSTM", "float32", 20, "bfloat16", marks=pytest.mark.thorough),
    ],
)
def test_the_kernel_is_built_without_a_gpu(
    device: Device, kind: str, dtype: str, hidden: int, narrow: str | None
) -> None:
    found = module(kind, dtype, hidden, narrow=narrow)
    _, (kernel,) = with_kernels(found, device)
    assert ("__cluster_dims__" in kernel.text) == (hidden == 160)
    library = build(found, device, ())
    assert kernel.name.encode() in library
    assert b"__launch_bounds__" not in library


@gpu
def test_what_the_compiler_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "tests.no_such_thing"
    monkeypatch.setattr(
        "mcfuser.codegen.cuda.recurrence.source", lambda walk, name: f"void {name}() {{ {wrong}; }}"
    )
    with pytest.raises(DeviceError, match="cannot be built: "):
        build(module("RNN"), H200, ())
