"""Equal expressions are computed once, and large constants are the same objects as before."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from mcfuser.graph.common import common_values
from mcfuser.graph.dataflow import array, dataflow


def module_of(*constants: np.ndarray) -> tvm.IRModule:
    """x multiplied by each of the constants, twice, and all of it added up."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 256), "float32"))
    given = [relax.const(c) for c in constants]
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            total = builder.emit(relax.op.multiply(x, relax.const(0.5)))
            for constant in (*given, *given):
                product = builder.emit(relax.op.matmul(x, constant))
                total = builder.emit(relax.op.add(total, product))
            out = builder.emit_output(total)
        builder.emit_func_output(out)
    return builder.finalize()


def large(seed: int, rows: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 256)).astype(np.float32)


def products(module: tvm.IRModule) -> list[relax.Call]:
    flow = dataflow(module["main"])
    return [flow.values[v] for v in flow.products]


def test_equal_products_of_large_constants_are_one() -> None:
    given = [large(0), large(1)]
    made = common_values(module_of(*given))
    relax.analysis.well_formed(made)
    assert [p.name for p in made["main"].params] == ["x"]
    assert int(made["main"].attrs["num_input"]) == 1
    found = [array(p.args[1]) for p in products(made)]
    assert len(found) == 2
    for a, b in zip(found, given, strict=True):
        assert a is not None and (a == b).all()


def test_small_constants_are_compared_by_their_elements() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    ones = [relax.const(np.ones((8, 8), np.float32)) for _ in range(2)]
    with builder.function("main", [x]):
        with builder.dataflow():
            both = [builder.emit(relax.op.matmul(x, c)) for c in ones]
            out = builder.emit_output(relax.op.add(*both))
        builder.emit_func_output(out)
    assert len(products(common_values(builder.finalize()))) == 1
