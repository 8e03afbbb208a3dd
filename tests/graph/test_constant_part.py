"""Values of a Relax module that depend on no parameter become constants."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.graph.constant_part import with_constants

ROW = np.arange(4, dtype=np.float32)


def module(steps: int = 0) -> tvm.IRModule:
    """y = x + (2 row + 1), plus its column sqrt(x).shape[0]; then `steps` values more of x."""
    x, builder = relax.Var("x", relax.TensorType((3, 4), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            double = builder.emit(relax.op.multiply(relax.const(ROW), relax.const(np.float32(2))))
            joined = builder.emit(relax.op.concat([double, double], 0))
            first = builder.emit(relax.op.strided_slice(joined, [0], [0], [4]))
            more = builder.emit(relax.op.add(first, relax.const(np.float32(1))))
            root = builder.emit(relax.op.sqrt(x))
            counted = builder.emit(relax.op.shape_to_tensor(relax.op.shape_of(root)))
            count = builder.emit(relax.op.take(counted, relax.const(0, "int64"), 0))
            value = builder.emit(relax.op.add(x, more))
            column = builder.emit(relax.op.take(value, count, 1))
            value = builder.emit(relax.op.add(value, relax.op.expand_dims(column, 1)))
            for _ in range(steps):
                value = builder.emit(relax.op.add(value, x))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def simplified(made: tvm.IRModule) -> tvm.IRModule:
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(passes)(made)


def test_the_result_is_that_of_tvms_pass() -> None:
    constants = []
    for fold in (relax.transform.FoldConstant(), with_constants):
        (block,) = simplified(fold(module()))["main"].body.blocks
        names = [str(b.value.op.name) for b in block.bindings]
        assert names == [f"relax.{n}" for n in ("add", "take", "expand_dims", "add")]
        constants.append([b.value.args[1].value.numpy() for b in block.bindings[:2]])
    np.testing.assert_array_equal(constants[0][0], 2 * ROW + 1)
    for wanted, found in zip(*constants, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_module_without_constants_is_left() -> None:
    x, builder = relax.Var("x", relax.TensorType((3,), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.sqrt(x))
        builder.emit_func_output(out)
    made = builder.get()
    assert with_constants(made) is made


@pytest.mark.parametrize("steps", [2000])
def test_values_that_are_no_constants_cost_little(steps: int) -> None:
    """TVM's pass takes half a millisecond for each."""
    made = module(steps)
    begun = time.process_time()
    relax.transform.FoldConstant()(made)
    whole = time.process_time() - begun
    begun = time.process_time()
    with_constants(made)
    assert time.process_time() - begun < whole / 2
