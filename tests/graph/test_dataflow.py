"""A Relax function as a graph: who computes a value, who reads it, and what kind it is."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from mcfuser.graph.dataflow import (
    Dataflow,
    array,
    computed_from,
    dataflow,
    extents,
    reachable,
    sources,
    weight_count,
)


def made() -> tuple[Dataflow, dict[str, relax.Var]]:
    """softmax(relu(x w) v), transposed, and its sum."""
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    w = relax.Var("w", relax.TensorType((8, 8), "float32"))
    builder, found = relax.BlockBuilder(), {"x": x, "w": w}

    def emit(name: str, call: relax.Call) -> None:
        found[name] = builder.emit(call, name)

    with builder.function("main", [x, w]):
        with builder.dataflow():
            emit("product", relax.op.matmul(x, w))
            emit("relu", relax.op.nn.relu(found["product"]))
            emit("second", relax.op.matmul(found["relu"], w))
            emit("soft", relax.op.nn.softmax(found["second"], -1))
            emit("turned", relax.op.permute_dims(found["soft"]))
            emit("total", relax.op.sum(found["soft"]))
            out = builder.emit_output(relax.Tuple([found["turned"], found["total"]]))
        builder.emit_func_output(out)
    flow = dataflow(builder.get()["main"])
    return flow, found


@pytest.fixture(scope="module")
def given() -> tuple[Dataflow, dict[str, relax.Var]]:
    return made()


def test_kinds_of_bindings(given) -> None:
    flow, v = given
    kinds = {n: flow.kinds[v[n]] for n in ("product", "relu", "soft", "turned", "total")}
    assert kinds == {
        "product": "product", "relu": "elementwise", "soft": "softmax", "turned": "view",
        "total": "reduction",
    }  # fmt: skip


def test_products_come_in_order_and_readers_are_known(given) -> None:
    flow, v = given
    assert [p.same_as(v[n]) for p, n in zip(flow.products, ("product", "second"), strict=True)]
    assert len(flow.products) == 2
    assert set(flow.readers[v["w"]]) == {v["product"], v["second"]}
    assert set(flow.readers[v["soft"]]) == {v["turned"], v["total"]}


def test_outputs_are_what_a_tuple_holds(given) -> None:
    flow, v = given
    assert {v["turned"], v["total"]} <= flow.outputs
    assert v["soft"] not in flow.outputs


def test_sources_are_named_once(given) -> None:
    flow, v = given
    assert sources(flow.values[v["second"]]) == (v["relu"], v["w"])
    square = relax.op.multiply(v["x"], v["x"])
    assert sources(square) == (v["x"],)


def test_what_is_reached_by_operators_of_some_kinds_has_as_many_elements(given) -> None:
    flow, v = given
    assert reachable(flow, v["product"], ("elementwise",)) == (v["product"], v["relu"])
    every = reachable(flow, v["product"], ("elementwise", "product", "softmax", "view"))
    assert v["turned"] in every and v["total"] not in every
    assert [flow.position[x] for x in every] == sorted(flow.position[x] for x in every)


def test_between_is_what_a_value_is_computed_from(given) -> None:
    flow, v = given
    some = reachable(flow, v["product"], ("elementwise", "product", "softmax", "view"))
    assert computed_from(flow, v["second"], some) == (v["product"], v["relu"], v["second"])


def test_extents_are_numbers_or_nothing() -> None:
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    unknown = relax.Var("y", relax.TensorType(None, "float32", ndim=2))
    assert extents(x) == (4, 8) and extents(unknown) is None


def test_the_array_of_a_constant_and_nothing_of_a_variable() -> None:
    values = np.arange(6, dtype="float32").reshape(2, 3)
    found = array(relax.const(values))
    assert found is not None and np.array_equal(found, values)
    assert array(relax.Var("x", relax.TensorType((2, 3), "float32"))) is None


def test_an_operator_is_named_for_people(given) -> None:
    flow, v = given
    assert flow.operator(v["product"]) == "matmul"
    assert flow.operator(v["soft"]) == "nn.softmax"


def test_the_weights_of_a_function_are_counted_once_each() -> None:
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    weight = relax.const(np.ones((8, 8), np.float32))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            one = builder.emit(relax.op.matmul(x, weight))
            two = builder.emit(relax.op.matmul(one, weight))
            row = relax.const(np.ones((2, 8), np.float32))
            joined = builder.emit_output(relax.op.concat([two, row], axis=0))
        builder.emit_func_output(joined)
    assert weight_count(builder.finalize()["main"]) == 64 + 16
