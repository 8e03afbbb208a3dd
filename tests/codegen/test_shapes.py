"""Extents that are computed at run time: equal modules have equal code."""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx

from mcfuser.codegen.shapes import fixed, ordered_shapes

EXTENTS = 12


def repeated() -> tirx.PrimFunc:
    """An array as often as another extent says."""
    given = te.placeholder((tirx.Var("n", "int64"),), "float32", "given")
    size = tirx.Var("m", "int64")
    made = te.compute((size,), lambda i: given[i % given.shape[0]], name="made")
    return te.create_prim_func([given, made]).without_attr("global_symbol")


def lowered() -> tvm.IRModule:
    """A module whose main takes memory of many extents, after TVM has made functions of these."""
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n,), "float32"))
    builder = relax.BlockBuilder()
    function = builder.add_func(repeated(), "repeated")
    with builder.function("main", [x]):
        kinds = [relax.TensorType((n * times,), "float32") for times in range(1, EXTENTS + 1)]
        results = [builder.emit(relax.call_tir(function, [x], kind)) for kind in kinds]
        builder.emit_func_output(relax.Tuple(results))
    t = relax.transform
    passes = (t.CallTIRRewrite(), t.LowerAllocTensor(), t.LowerRuntimeBuiltin(), t.VMShapeLower())
    return tvm.transform.Sequential(list(passes))(builder.get())


def places(module: tvm.IRModule) -> list[list[int]]:
    return [
        [int(store.indices[0]) for store in f.body.seq]
        for f in module.functions.values()
        if isinstance(f, tirx.PrimFunc) and f.attrs.get("tirx.is_host_func", 0)
    ]


def test_extents_are_stored_in_order() -> None:
    before, after = lowered(), ordered_shapes(lowered())
    (found,), (ordered,) = places(before), places(after)
    assert ordered == sorted(found) and len(ordered) >= EXTENTS - 1
    texts = {str(ordered_shapes(lowered()).script()) for _ in range(5)}
    assert len(texts) == 1


def test_other_functions_stay_as_they_are() -> None:
    module = lowered()
    after = ordered_shapes(module)
    for name, function in module.functions.items():
        if not name.name_hint.startswith("shape_func"):
            assert after[name].same_as(function)


def test_extents_are_those_that_are_numbers() -> None:
    assert fixed(relax.ShapeExpr([3, 0, 5])) == (3, 0, 5)
    assert fixed(relax.ShapeExpr([3, tvm.tirx.Var("n", "int64")])) is None
    assert fixed(relax.ShapeExpr([])) is None
    assert fixed(relax.Var("s", relax.ShapeType(ndim=2))) is None
